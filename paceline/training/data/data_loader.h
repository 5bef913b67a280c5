#pragma once

// Batches of a data set's samples, prepared ahead by the loader's own threads.
//
//   const auto dataset = std::make_shared<data::ImageSamples>(data::load_cifar10(folder, split));
//   data::DataLoader loader(dataset, sampler, {.batch_size = 32});
//   for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
//     loader.begin_epoch(epoch);
//     while (auto batch = loader.next()) { ... }
//   }
//
// Batches come in the sampler's order for any number of threads. The loader's position, and so a
// checkpoint's, counts the batches taken, not the batches prepared.
//
// With global_batch_size a step takes this many samples of all ranks together, so a job that
// shrinks or grows continues with the same steps (batch_source.h). A loop then multiplies each loss
// by the batch's weight, and reduces gradients and steps only if `ends_step`; train::run_loop()
// does that. The weight is for losses that are means over a batch's samples; for others see
// training/train/loop.h.
//
// Streams are read in the same way (streamed_dataset.h). With DataLoaderOptions::groups all samples
// of a batch belong to one group (distributed_sampler.h).
//
// With logical shards (engine/core/logical_shards.h) a step is also a global batch, and each of its
// batches is one shard. next() then seeds the random numbers of this rank
// (training/tensor/random.h), so that dropout is the same for any number of ranks.
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
  std::vector<at::Tensor> tensors;    // the data set's tensors; dim 0 counts samples
  at::Tensor data;                    // the first tensor: the model's input
  at::Tensor target;                  // the second tensor, the wanted output, or undefined
  std::vector<std::int64_t> indices;  // of the samples in the data set, or numbers of records
  double weight = 1;                  // factor for its loss, a mean over samples
  bool ends_step = true;              // the next batch belongs to another step
  std::int64_t shard = -1;            // the number of its logical shard; -1: there are none
  std::uint64_t seed = 0;             // for the random numbers of that shard
};

struct DataLoaderOptions {
  std::int64_t batch_size = 32;        // samples of this rank, or of each logical shard
  std::int64_t global_batch_size = 0;  // above 0: samples of all ranks together, instead
  std::int64_t micro_batch_size = 0;   // most samples at once of a global batch; 0: any number
  int num_threads = 1;                 // 0: in the thread that calls next()
  int prefetch = 4;                    // batches prepared ahead
  bool drop_last = false;              // leave out a last batch that is not full
  // Shards of a training step; 0: none. Must be the same on every rank.
  std::int64_t logical_shards = job_logical_shards();
  // With a sampler: the samples of a batch, or of a global batch, belong to one group. Null: to
  // any.
  Groups groups = nullptr;
};

// Which part of a stream's records a rank takes: of each step, every num_ranks-th.
struct StreamShare {
  int num_ranks = 1;
  int rank = 0;
  std::uint64_t seed = 0;  // for the random numbers of logical shards
};

class DataLoader {
 public:
  // For training: copies `sampler`. Error(kInvalid) when it is for another number of samples, its
  // ranks do not fit the logical shards, or the groups are for another number of samples or fill no
  // batch.
  DataLoader(std::shared_ptr<const Dataset> dataset, const DistributedSampler& sampler,
             const DataLoaderOptions& options);
  // For evaluation: exactly these samples, in this order.
  DataLoader(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices,
             const DataLoaderOptions& options);
  // For training on a stream. All ranks take the same number of steps: if the last step has fewer
  // records than ranks, some records are taken twice, in a global batch with the weight 0.
  DataLoader(std::shared_ptr<const StreamedDataset> stream, const StreamShare& share,
             const DataLoaderOptions& options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Begins an epoch, after `consumed` samples of all ranks together. Batches prepared before are
  // dropped. Warns once when a shuffled epoch that was taken to its end begins again under the same
  // number, because its order would repeat. Error(kInvalid) when drop_last leaves no batch of a
  // whole epoch, and when batches of groups or a stream cannot continue there.
  void begin_epoch(std::int64_t epoch, std::int64_t consumed = 0);
  // The next batch; at the end of the epoch nothing, once. Error(kInvalid) before begin_epoch() and
  // after the end.
  std::optional<Batch> next();

  // Whether all batches of this epoch have been taken. Requires: begin_epoch() was called.
  bool exhausted() const { return exhausted_; }

  // Batches of a whole epoch begun at its first sample; the batches of one step count once. 0 for a
  // stream, whose length is not known.
  std::int64_t num_batches() const;
  bool is_streamed() const;
  // Samples of this epoch that all ranks together have consumed, by the batches taken; padding does
  // not count, so any number of ranks can continue from here.
  std::int64_t consumed() const { return consumed_; }
  // The name of the data in messages.
  const std::string& name() const;
  // Shards of a step; 0: none.
  std::int64_t logical_shards() const;

 private:
  // A batch, and the position that next() sets when it returns it.
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
  // The next batch to prepare, with its number; nothing at the end.
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
