#pragma once

// The flags of train_cnn.

#include <cstdint>
#include <string>

namespace train_cnn {

struct Options {
  std::string command;                    // as it was called, for a shell
  std::string dataset = "fashion-mnist";  // or mnist, cifar10
  std::string data_dir;                   // default: where Debian's package puts Fashion-MNIST
  std::string model = "cnn";              // or net
  std::string optimizer = "adam";         // or adamw, sgd
  double lr = 1e-3;
  bool lr_given = false;
  double momentum = 0.9;
  double weight_decay = 0;
  std::string schedule = "constant";  // or step, cosine, one-cycle, plateau
  std::int64_t warmup = 0;            // steps; 0: one-cycle's own
  std::int64_t schedule_steps = 0;    // 0: those of the run
  std::int64_t rate_every = 0;        // of schedule step; 0: a third of the schedule's steps
  double clip_norm = 0;               // 0: not clipped
  double clip_value = 0;
  std::string precision = "float32";  // or bf16, autocast-bf16, autocast-fp16
  double ema = 0;                     // decay; 0: no average of the weights
  std::string hook = "none";          // or bf16, fp16, powersgd, topk
  std::int64_t powersgd_rank = 4;
  std::int64_t hook_start = 100;  // steps before powersgd compresses
  double topk_density = 0.01;
  std::int64_t batch_size = 32;        // of each rank
  std::int64_t global_batch_size = 0;  // of all ranks together, instead of batch_size
  std::int64_t micro_batch_size = 0;   // of it, at most so many samples of a rank at once
  std::int64_t epochs = 2;
  std::int64_t max_steps = 0;
  std::uint64_t seed = 0;
  bool seed_given = false;
  int threads = 0;
  std::string backend;  // empty: what the launcher says, else paceline
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 0;         // steps; 0: at each epoch's end
  std::int64_t memory_checkpoint_every = 0;  // steps; 0: never
  std::string stop_file;
  bool resume = false;
  bool resume_other_run = false;
  bool augment = false;
  std::string metrics;
  std::string tensorboard;
};

// Ends the program with exit code 2 for a flag that is wrong, and 0 after --help.
Options parse_options(int argc, char** argv);

}  // namespace train_cnn
