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
// `ends_step`; train::run_loop() does.
//
// With logical shards (core/logical_shards.h) a step is such a global batch, too, and each of its
// batches is one shard. next() then seeds the random numbers of this rank (tensor/random.h), so
// that dropout is the same whatever the number of ranks.
//
// Thread safety: one consumer. An error in a loader thread is thrown by next().

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/core/logical_shards.h"
#include "paceline/data/batch_plan.h"
#include "paceline/data/dataset.h"
#include "paceline/data/distributed_sampler.h"

namespace paceline::data {

struct Batch {
  std::vector<at::Tensor> tensors;    // the dataset's; dim 0 are the samples
  at::Tensor data;                    // the first of them: what the model takes
  at::Tensor target;                  // the second: what it should give; undefined without one
  std::vector<std::int64_t> indices;  // of the samples, in the dataset
  double weight = 1;                  // of its loss, a mean over samples
  bool ends_step = true;              // the gradients of the next one belong to another step
  std::int64_t shard = -1;            // the logical shard that it is; -1: there are none
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
};

class DataLoader {
 public:
  // For training: `sampler` is copied. Error(kInvalid) when it is for another number of samples, or
  // its ranks do not fit the logical shards.
  DataLoader(std::shared_ptr<const Dataset> dataset, const DistributedSampler& sampler,
             const DataLoaderOptions& options);
  // For evaluation: exactly these samples, in this order.
  DataLoader(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices,
             const DataLoaderOptions& options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Begins an epoch, after `consumed` samples of all ranks together. What was prepared before is
  // dropped. Warns once when a shuffled epoch that was taken to its end begins again under the same
  // number: its order would repeat. Error(kInvalid) when drop_last leaves nothing of a whole epoch:
  // a loop would train on nothing.
  void begin_epoch(std::int64_t epoch, std::int64_t consumed = 0);
  // The next batch; nothing, once, at the end of the epoch. Error(kInvalid) outside of an epoch:
  // before begin_epoch(), and after the end.
  std::optional<Batch> next();

  // All of this epoch's batches have been taken. Requires: begin_epoch() was called.
  bool exhausted() const { return num_taken_ == plan_.size(); }

  // Batches of a whole epoch begun at its first sample; those of one step count once.
  std::int64_t num_batches() const;
  // Samples of this epoch that all ranks together have consumed, by the batches taken; padding does
  // not count, so that any number of ranks can go on from here.
  std::int64_t consumed() const { return consumed_; }
  const Dataset& dataset() const { return *dataset_; }
  // Of a step; 0: none.
  std::int64_t logical_shards() const { return sampler_ ? options_.logical_shards : 0; }

 private:
  void warn_of_repeated_order(std::int64_t epoch, std::int64_t consumed);
  void require_batches() const;
  void require_begun() const;
  void start_threads();
  void stop_threads();
  void work(std::stop_token stop);
  // Of a step of all ranks; 0: each rank has its own.
  std::int64_t global_size() const;
  std::vector<PlannedBatch> plan() const;
  Batch prepare(const PlannedBatch& planned) const;

  const std::shared_ptr<const Dataset> dataset_;  // owners: the user and this
  std::optional<DistributedSampler> sampler_;
  const DataLoaderOptions options_;
  const std::vector<std::int64_t> indices_;  // without a sampler
  std::vector<PlannedBatch> plan_;           // from where the epoch was begun
  enum class State { kNew, kInEpoch, kEnded };
  State state_ = State::kNew;
  bool warned_ = false;
  std::int64_t epoch_ = 0;
  std::int64_t consumed_ = 0;
  std::size_t num_taken_ = 0;

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::size_t next_to_prepare_ = 0;
  std::map<std::size_t, Batch> ready_;
  std::exception_ptr error_;
  std::vector<std::jthread> threads_;
};

}  // namespace paceline::data
