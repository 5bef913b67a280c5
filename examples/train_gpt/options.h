#pragma once

// The flags of train_gpt: its own, and the flags that all training programs share.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/training/parallel/low_communication.h"

#include "examples/training_flags.h"

namespace train_gpt {

// The Jargon File, 1.7 MB in the public domain, from Debian's package jargon-text.
inline constexpr const char* kDefaultText = "/usr/share/doc/jargon-text/jargon.txt.gz";

// The flags of a mesh with stages (pp).
struct PipelineFlags {
  std::string schedule = "1f1b";  // a name of pipeline_schedule_names(), or "search"
  int micro_batches = 0;          // of each replica's part of a step; 0: twice the number of stages
  int stages_per_rank = 0;        // 0: the best number for "search", otherwise 1
  double memory_mib = 0;          // limit for a rank's activations, for "search"; 0: none
  std::string picture;            // file for the last step; ".svg" or ".json"
};

// The flags of learners that train on their own between outer steps (LowCommunication).
struct OuterFlags {
  int learners = 1;
  std::string wire = "float32";  // type of the values that learners send; or bf16, int8
  paceline::LowCommunicationOptions step;
};

struct Options {
  std::string text = kDefaultText;  // name of a file
  std::string tokenizer = "bytes";  // or a folder with GPT-2's files
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t context = 128;  // tokens
  double dropout = 0;

  int shard = 0;                         // stage of fully_shard(); 0: DistributedDataParallel
  bool shard_across_hosts = false;       // FullyShardOptions::shard_across_hosts
  std::vector<paceline::MeshAxis> mesh;  // with the axes dp, tp and pp; empty: all ranks along dp
  PipelineFlags pipeline;
  OuterFlags outer;

  std::int64_t sample = 100;  // tokens to generate at the end
  std::string prompt = "This ";

  training_flags::TrainingFlags training;

  int axis(const std::string& name) const;  // the size of an axis; 1 if the mesh lacks it
  int least_stages() const;                 // the smallest number of stages of the pipeline
  int micro_batches() const;                // the number of micro-batches of the pipeline
};

// Ends the program with exit code 2 if a flag is wrong, and with 0 after --help.
Options parse_options(int argc, char** argv);

}  // namespace train_gpt
