// The entry through which libFuzzer, or replay.cpp, calls a target.

#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/fuzz.h"

namespace paceline::fuzz {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace paceline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    paceline::fuzz::take({reinterpret_cast<const std::byte*>(data), size});
  } catch (const paceline::Error&) {  // the expected outcome
  }
  return 0;
}
