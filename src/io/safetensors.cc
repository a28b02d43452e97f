#include "headwater/problem.h"
