#include <cstdio>

#include "headwater/headwater.h"

int main() {
  std::printf("headwater %s\n", headwater::version());
  return 0;
}
