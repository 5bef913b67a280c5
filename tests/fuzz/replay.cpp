// Runs a target once over every file of the given folders, and over each prefix of each file: for
// builds without libFuzzer.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  constexpr std::size_t kMaxPrefixes = 256;
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      const std::size_t step = 1 + bytes.size() / kMaxPrefixes;
      for (std::size_t size = 0; size < bytes.size(); size += step) {
        // A copy of exactly that size, so that a sanitizer detects reads beyond the end.
        const std::vector<std::uint8_t> part(bytes.begin(),
                                             bytes.begin() + static_cast<std::ptrdiff_t>(size));
        LLVMFuzzerTestOneInput(part.data(), part.size());
      }
      const std::vector<std::uint8_t> whole(bytes.begin(), bytes.end());
      LLVMFuzzerTestOneInput(whole.data(), whole.size());
      ++files;
    }
  }
  std::printf("%d files\n", files);
  return files > 0 ? 0 : 1;
}
