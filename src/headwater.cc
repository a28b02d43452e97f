// The only file that knows all backends.
#include "headwater/headwater.h"

namespace headwater {

const char* version() { return "0.1.0"; }

}  // namespace headwater
