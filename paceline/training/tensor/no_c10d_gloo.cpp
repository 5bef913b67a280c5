#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/training/tensor/c10d.h"

namespace paceline {

bool register_libtorch_gloo() {
  register_library({.info = {.name = "c10d",
                             .device = Device::kCpu,
                             .available = false,
                             .text = PACELINE_NO_C10D,
                             .advice = "apt-get install libgloo-dev and build again"},
                    .connect = {}});
  return false;
}

}  // namespace paceline
