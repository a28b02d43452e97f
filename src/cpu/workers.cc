#include "headwater/plan.h"
