#pragma once

// Lets a test program load the stand-ins for NVIDIA's libraries (standin_nvidia/). The program's
// target defines the libraries' paths, STANDIN_CUDART and STANDIN_NCCL.

#include <cstdlib>

namespace paceline::harness {

// Sets the paths for this process and its children; loads nothing.
inline void use_standins() {
  setenv("PACELINE_LIBCUDART", STANDIN_CUDART, 1);
  setenv("PACELINE_LIBNCCL", STANDIN_NCCL, 1);
}

}  // namespace paceline::harness
