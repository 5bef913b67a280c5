#pragma once

// The flags of train_gpt: its own, and those of every training program.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/device_mesh.h"

#include "examples/training_flags.h"

namespace train_gpt {

// The Jargon File, 1.7 MB in the public domain, from Debian's package jargon-text.
inline constexpr const char* kDefaultText = "/usr/share/doc/jargon-text/jargon.txt.gz";

// Of a mesh with stages (pp).
struct PipelineFlags {
  std::string schedule = "1f1b";  // a name of pipeline::plan_names(), or "search"
  int micro_batches = 0;          // of each replica's part of a step; 0: twice the stages
  int stages_per_rank = 0;        // 0: what is best for "search", otherwise 1
  double memory_mib = 0;          // that a rank's activations may take, for "search"; 0: any
  std::string picture;            // file for the last step; ".svg" or ".json"
};

struct Options {
  std::string text = kDefaultText;  // file
  std::string tokenizer = "bytes";  // or a folder with GPT-2's files
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t context = 128;  // tokens
  double dropout = 0;

  int shard = 0;                         // stage of fully_shard(); 0: DistributedDataParallel
  bool divide_hosts = false;             // FullyShardOptions::divide_hosts
  std::vector<paceline::MeshAxis> mesh;  // with dp, tp and pp; empty: dp alone, of all ranks
  PipelineFlags pipeline;

  std::int64_t sample = 100;  // tokens to generate at the end
  std::string prompt = "This ";

  training_flags::TrainingFlags training;

  int axis(const std::string& name) const;  // its size; 1: there is none
  int least_stages() const;                 // of a pipeline
  int micro_batches() const;                // of a pipeline
};

// Ends the program with exit code 2 for a flag that is wrong, and 0 after --help.
Options parse_options(int argc, char** argv);

}  // namespace train_gpt
