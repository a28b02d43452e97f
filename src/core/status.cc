#include "headwater/status.h"
