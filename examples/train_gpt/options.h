#pragma once

// The flags of train_gpt: its own, and those of every training program.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/collectives/group/device_mesh.h"

#include "examples/training_flags.h"

namespace train_gpt {

// The GNU General Public License, which Debian's package base-files has.
inline constexpr const char* kDefaultText = "/usr/share/common-licenses/GPL-3";

struct Options {
  std::string text = kDefaultText;  // file
  std::string tokenizer = "bytes";  // or a folder with GPT-2's files
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t context = 128;  // tokens
  double dropout = 0;

  int shard = 0;                         // stage of fully_shard(); 0: DistributedDataParallel
  std::vector<paceline::MeshAxis> mesh;  // with axes dp and tp; empty: dp alone, of all ranks

  std::int64_t sample = 100;  // tokens to generate at the end
  std::string prompt = "This ";

  training_flags::TrainingFlags training;
};

// Ends the program with exit code 2 for a flag that is wrong, and 0 after --help.
Options parse_options(int argc, char** argv);

}  // namespace train_gpt
