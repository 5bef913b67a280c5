#pragma once

// Batches of a dataset's samples, prepared ahead by threads of their own.
//
//   const auto dataset = std::make_shared<data::ImageSamples>(data::load_cifar10(folder, split));
//   data::DataLoader loader(dataset, sampler, {.batch_size = 32});
//   for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
//     loader.begin_epoch(epoch);
//     while (auto batch = loader.next()) { ... }
//   }
//
// Batches come in the sampler's order, whatever the number of threads. The loader's position, and
// so a checkpoint's, is that of the batches taken, not of those prepared.
//
// With global_batch_size a step takes so many samples of all ranks together, whatever their number,
// so that a job that shrinks or grows goes on with the same steps (batch_plan.h). A loop then
// multiplies each loss by the batch's weight, and steps and reduces gradients only where
// `ends_step`; train::run_loop() does. The weight is for losses that are means over a batch's
// samples; for others see training/train/loop.h.
//
// A stream's batches come the same way (streamed_dataset.h). With DataLoaderOptions::groups all
// samples of a batch are of one group (grouped_order.h).
//
// With logical shards (engine/core/logical_shards.h) a step is such a global batch, too, and each
// of its batches is one shard. next() then seeds the random numbers of this rank
// (training/tensor/random.h), so that dropout is the same whatever the number of ranks.
//
// Thread safety: one consumer. An error in a loader thread is thrown by next().

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/core/logical_shards.h"
#include "paceline/training/data/dataset.h"
#include "paceline/training/data/distributed_sampler.h"
#include "paceline/training/data/streamed_dataset.h"

namespace paceline::data {

class BatchSource;
struct Draft;

struct Batch {
  std::vector<at::Tensor> tensors;    // the dataset's; dim 0 are the samples
  at::Tensor data;                    // the first of them: what the model takes
  at::Tensor target;                  // the second: what it should give; undefined without one
  std::vector<std::int64_t> indices;  // of the samples in the dataset, or numbers of records
  double weight = 1;                  // of its loss, a mean over samples
  bool ends_step = true;              // the gradients of the next one belong to another step
  std::int64_t shard = -1;            // the logical shard that it is; -1: there are none
  std::uint64_t seed = 0;             // of what is random in that shard, for seed_rank()
};

struct DataLoaderOptions {
  std::int64_t batch_size = 32;        // of this rank, or of each logical shard
  std::int64_t global_batch_size = 0;  // above 0: of all ranks together, instead
  std::int64_t micro_batch_size = 0;   // of it, at most so many samples at once; 0: any number
  int num_threads = 1;                 // 0: in the thread that calls next()
  int prefetch = 4;                    // batches prepared ahead
  bool drop_last = false;              // leave out a last batch that is not full
  // Of a step of training; 0: none. Every rank must have the same.
  std::int64_t logical_shards = job_logical_shards();
  // With a sampler: each batch, or each global batch, has samples of one group. Null: of any.
  Groups groups = nullptr;
};

// Which part of a stream's records a rank takes: of each step, every num_ranks-th.
struct StreamShare {
  int num_ranks = 1;
  int rank = 0;
  std::uint64_t seed = 0;  // of the random numbers of logical shards
};

class DataLoader {
 public:
  // For training: `sampler` is copied. Error(kInvalid) when it is for another number of samples, or
  // its ranks do not fit the logical shards, or the groups are of another number or fill no batch.
  DataLoader(std::shared_ptr<const Dataset> dataset, const DistributedSampler& sampler,
             const DataLoaderOptions& options);
  // For evaluation: exactly these samples, in this order.
  DataLoader(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices,
             const DataLoaderOptions& options);
  // For training on a stream. All ranks take the same number of steps: where the last one has fewer
  // records than ranks, some are taken twice, or, of a global batch, with the weight 0.
  DataLoader(std::shared_ptr<const StreamedDataset> stream, const StreamShare& share,
             const DataLoaderOptions& options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Begins an epoch, after `consumed` samples of all ranks together. What was prepared before is
  // dropped. Warns once when a shuffled epoch that was taken to its end begins again under the same
  // number: its order would repeat. Error(kInvalid) when drop_last leaves nothing of a whole epoch:
  // a loop would train on nothing; and when batches of groups or a stream cannot continue there.
  void begin_epoch(std::int64_t epoch, std::int64_t consumed = 0);
  // The next batch; nothing, once, at the end of the epoch. Error(kInvalid) outside of an epoch:
  // before begin_epoch(), and after the end.
  std::optional<Batch> next();

  // All of this epoch's batches have been taken. Requires: begin_epoch() was called.
  bool exhausted() const { return exhausted_; }

  // Batches of a whole epoch begun at its first sample; those of one step count once. 0 for a
  // stream: not known.
  std::int64_t num_batches() const;
  bool is_streamed() const;
  // Samples of this epoch that all ranks together have consumed, by the batches taken; padding does
  // not count, so that any number of ranks can go on from here.
  std::int64_t consumed() const { return consumed_; }
  // Of the data, as messages call it.
  const std::string& name() const;
  // Of a step; 0: none.
  std::int64_t logical_shards() const;

 private:
  // What next() needs of a batch, and gives.
  struct Prepared {
    Batch batch;
    std::int64_t consumed = 0;  // after its step
    std::int64_t position = 0;  // before its step
    bool ends_epoch = false;
  };

  DataLoader(std::unique_ptr<BatchSource> source, const DataLoaderOptions& options);
  void warn_of_repeated_order(std::int64_t epoch, std::int64_t consumed);
  void require_begun() const;
  void start_threads();
  void stop_threads();
  void work(std::stop_token stop);
  bool wait_for_room(std::stop_token stop);
  // The next one to prepare, with its number; nothing at the end.
  std::optional<std::pair<std::size_t, Draft>> take_draft();
  Prepared prepare(Draft draft) const;
  Prepared take_prepared();

  const DataLoaderOptions options_;
  enum class State { kNew, kInEpoch, kEnded };
  State state_ = State::kNew;
  bool warned_ = false;
  bool exhausted_ = false;
  std::int64_t epoch_ = 0;
  std::int64_t consumed_ = 0;
  std::size_t num_taken_ = 0;

  std::mutex source_mutex_;  // guards the source's position, and the next number
  const std::unique_ptr<BatchSource> source_;
  std::size_t next_number_ = 0;

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::map<std::size_t, Prepared> ready_;
  std::exception_ptr error_;
  std::vector<std::jthread> threads_;
};

}  // namespace paceline::data
