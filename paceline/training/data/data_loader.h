#pragma once

// Batches of a data set's samples, prepared ahead by the loader's own threads.
//
//   const auto dataset = std::make_shared<data::ImageSamples>(data::load_cifar10(folder, split));
//   data::DataLoader loader(dataset, sampler, {.batch_size = 32});
//   for (std::int64_t epoch = 0; epoch < epochs; ++epoch)
//     for (const data::Batch& batch : loader.epoch(epoch)) { ... }
//
// Batches come in the sampler's order for any number of threads. The loader's position, and so the
// position in a checkpoint, counts the batches that the loop has taken, not the batches prepared.
//
// With global_batch_size, all ranks together take that many samples in each step, so a job that
// shrinks or grows continues with the same steps. The training loop must then use
// batch.weighted(loss) in place of each loss, and reduce gradients and call the optimizer only
// after batches with `ends_step`; train::TrainingRun does that. The weight is meant for losses that
// are means over a batch's samples; for other losses see training/train/step_gradients.h.
//
// Streams are read in the same way (streamed_dataset.h). With DataLoaderOptions::groups all samples
// of a batch belong to one group (distributed_sampler.h).
//
// With logical shards (docs/data_parallel.md) a step is also a global batch, and each of its
// batches is one shard. Taking a batch then seeds the random numbers of this rank
// (training/tensor/random.h), so that dropout is the same for any number of ranks.
//
// Thread safety: one consumer thread. If a batch cannot be prepared, the loop gets the error the
// next time that it takes a batch, and every time after that in the same epoch.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "paceline/engine/core/job_logical_shards.h"
#include "paceline/training/data/dataset.h"
#include "paceline/training/data/distributed_sampler.h"
#include "paceline/training/data/streamed_dataset.h"

namespace paceline::data {

class BatchSource;
struct Draft;

struct Batch {
  std::vector<at::Tensor> tensors;    // the data set's tensors; dim 0 counts samples
  at::Tensor data;                    // the first tensor: the model's input
  at::Tensor target;                  // the second tensor, the desired output, or undefined
  std::vector<std::int64_t> indices;  // sample indices, or record numbers
  double weight = 1;                  // factor for the batch's loss, which is a mean over samples
  bool ends_step = true;              // the next batch belongs to another step
  std::int64_t shard = -1;            // number of the batch's logical shard; -1: no logical shards
  std::uint64_t seed = 0;             // seed for the random numbers of that shard

  // The loss from which a backward pass starts: `loss`, a mean over this batch's samples, times the
  // batch's weight.
  at::Tensor weighted(const at::Tensor& loss) const { return weight == 1 ? loss : loss * weight; }
};

struct DataLoaderOptions {
  std::int64_t batch_size = 32;        // samples of a batch of this rank, or of each logical shard
  std::int64_t global_batch_size = 0;  // above 0: samples of all ranks; replaces batch_size
  std::int64_t micro_batch_size = 0;   // most samples of a global batch at once; 0: no limit
  int num_threads = 1;                 // 0: the loop's thread prepares batches
  int prefetch = 4;                    // batches prepared ahead
  bool drop_last = false;              // leave out an incomplete last batch
  // Logical shards of a training step, the same number on every rank; 0: no logical shards.
  std::int64_t logical_shards = paceline::detail::job_logical_shards();
  // The device of the batches' tensors. For a CUDA device the loader's threads prepare them in
  // pinned memory, and taking a batch queues the copies in the current stream without waiting for
  // them. The loader's constructor throws Error(kUnsupported) if LibTorch was built without CUDA,
  // kInvalid for a device that does not exist.
  c10::Device device = c10::kCPU;
  // The group of each sample: the samples of a batch, or of a global batch, then belong to one
  // group. Requires a sampler. Null: a batch may have samples of several groups.
  Groups groups = nullptr;
};

class DataLoader;

// The batches of one epoch of a DataLoader, as a range for one loop. Each batch is taken when the
// loop reaches it, and lives until the next iteration. The loader must outlive the epoch. The epoch
// becomes invalid when the loader begins another one or set_position() is called; taking a batch
// then throws Error(kInvalid). Thread safety: none.
class Epoch {
 public:
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(Epoch& epoch) : epoch_(&epoch) {}
    Batch& operator*() const { return *epoch_->batch_; }
    Batch* operator->() const { return &*epoch_->batch_; }
    Iterator& operator++() {
      epoch_->advance();
      return *this;
    }
    void operator++(int) { epoch_->advance(); }
    bool operator==(std::default_sentinel_t) const { return !epoch_->batch_; }

   private:
    Epoch* epoch_;
  };

  // Takes the next batch.
  Iterator begin() {
    advance();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }
  // Takes the next batch, for a program that takes batches in several places; nullopt after the
  // last one.
  std::optional<Batch> next();

 private:
  friend class DataLoader;
  Epoch(DataLoader& loader, std::uint64_t begun) : loader_(&loader), begun_(begun) {}
  void advance() {
    batch_.reset();  // its memory is free for the next batch
    batch_ = next();
  }

  DataLoader* loader_;
  std::uint64_t begun_;         // the loader's num_begun_ when this epoch began
  std::optional<Batch> batch_;  // the batch of the loop
};

class DataLoader {
 public:
  // A position in the data: after `consumed` samples of an epoch, of all ranks together.
  struct Position {
    std::int64_t epoch = 0;
    std::int64_t consumed = 0;

    bool operator==(const Position&) const = default;
  };

  // For training; copies `sampler`. Error(kInvalid) when the sampler is for another number of
  // samples, when the number of ranks does not fit the logical shards, or when groups are given for
  // another number of samples or for fewer samples than a batch has.
  DataLoader(std::shared_ptr<const Dataset> dataset, const DistributedSampler& sampler,
             const DataLoaderOptions& options = {});
  // For evaluation: takes exactly these samples, in this order.
  DataLoader(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices,
             const DataLoaderOptions& options = {});
  // For training on a stream: `rank` of `num_ranks` ranks takes every num_ranks-th record of each
  // step. `seed`: for the random numbers of logical shards. All ranks take the same number of
  // steps: if the last step cannot be divided equally, some ranks take a record that another rank
  // takes as well; in a global batch only ranks without a record do so, with the weight 0.
  DataLoader(std::shared_ptr<const StreamedDataset> stream, int num_ranks, int rank,
             const DataLoaderOptions& options = {}, std::uint64_t seed = 0);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Begins an epoch, after `consumed` samples of all ranks together, and returns its batches. With
  // nullopt the epoch begins at its first sample or, as the first epoch after set_position(), at
  // that position; if that position is in another epoch, at the first sample, with a warning.
  // Batches prepared earlier are dropped. Warns once if a shuffled epoch that was taken to its end
  // is begun again with the same number, because its order would repeat. Error(kInvalid) when
  // drop_last leaves no batch of a sampler's whole epoch, and when batches of groups or a stream
  // cannot continue after `consumed` samples.
  [[nodiscard]] Epoch epoch(std::int64_t number, std::optional<std::int64_t> consumed = {});

  // Whether all batches of the current epoch have been taken.
  bool exhausted() const { return exhausted_; }

  // The number of batches in a whole epoch that is begun at its first sample; the batches of one
  // step count once. 0 for a stream, whose length is not known.
  std::int64_t num_batches() const;
  bool is_streamed() const;
  // The samples of this epoch that all ranks together have consumed, counted from the batches that
  // the loop has taken; padding does not count, so any number of ranks can continue from here.
  std::int64_t consumed() const { return consumed_; }
  // The position from which another loader can continue: in the current epoch or, if its loop has
  // ended, at the beginning of the next epoch. set_position() makes the next epoch() continue at
  // `position`; its argument must then be position().epoch. The Checkpointer calls both functions.
  Position position() const;
  void set_position(const Position& position);
  // The name of the data in messages.
  const std::string& name() const;
  // Logical shards of a step; 0: no logical shards.
  std::int64_t logical_shards() const;

 public:  // internal
  // Describes the order of an epoch's samples, for example "2000 samples, shuffled with seed 3";
  // empty if unknown.
  const std::string& order() const;
  // Common mistakes do not compile; each error shows what to write instead.
  template <class Data, class Samples>
    requires(!std::is_convertible_v<const Data&, std::shared_ptr<const Dataset>>)
  DataLoader(const Data& /*data*/, const Samples& /*samples*/, const DataLoaderOptions& options)
      : DataLoader(std::shared_ptr<const Dataset>(), std::vector<std::int64_t>(), options) {
    static_assert(sizeof(Data) == 0,
                  "a DataLoader shares a data set with the program: write "
                  "std::make_shared<data::TensorDataset>(\"name\", std::vector{inputs, targets}), "
                  "or std::make_shared of a class derived from data::Dataset");
  }
  template <class Data, class Samples, class Number>
    requires std::is_arithmetic_v<Number>
  DataLoader(const Data& /*data*/, const Samples& /*samples*/, Number /*batch_size*/)
      : DataLoader(std::shared_ptr<const Dataset>(), std::vector<std::int64_t>()) {
    static_assert(sizeof(Data) == 0, "the batch size is an option: write {.batch_size = 32}");
  }
  template <class Data>
  explicit DataLoader(const Data& /*data*/, const DataLoaderOptions& options = {})
      : DataLoader(std::shared_ptr<const Dataset>(), std::vector<std::int64_t>(), options) {
    static_assert(sizeof(Data) == 0,
                  "the sampler is missing: write DataLoader loader(dataset, "
                  "data::DistributedSampler(dataset->size(), group), {.batch_size = 32})");
  }
  template <class Never = void>
  const Batch* begin() {
    static_assert(!std::is_same_v<Never, void>,
                  "a loop takes the batches of an epoch: write for (auto& batch : "
                  "loader.epoch(number))");
    return nullptr;
  }
  template <class Never = void>
  const Batch* end() {
    return nullptr;
  }

 private:
  friend class Epoch;

  // A prepared batch, and the position of the loader once the batch has been taken.
  struct Prepared {
    Batch batch;
    std::int64_t consumed = 0;  // samples consumed after the batch's step
    std::int64_t position = 0;  // samples consumed before the batch's step
    bool ends_epoch = false;
  };

  DataLoader(std::unique_ptr<BatchSource> source, const DataLoaderOptions& options);
  void warn_of_other_epoch(std::int64_t epoch) const;
  void warn_of_repeated_order(std::int64_t epoch, std::int64_t consumed);
  // Takes the next batch of the epoch that began when num_begun_ was `begun`; nullopt at its end.
  std::optional<Batch> next(std::uint64_t begun);
  void start_threads();
  void stop_threads();
  void work(std::stop_token stop);
  bool wait_for_room(std::stop_token stop);
  // Takes the next batch to prepare, with its number; nullopt at the end.
  std::optional<std::pair<std::size_t, Draft>> take_draft();
  void move_to_device(Batch& batch) const;
  Prepared prepare(Draft draft) const;
  Prepared take_prepared();

  const DataLoaderOptions options_;
  std::uint64_t num_begun_ = 0;  // epochs begun, plus calls of set_position()
  bool has_ended_ = false;       // next() has returned nullopt in the current epoch
  bool warned_ = false;
  bool exhausted_ = false;
  std::int64_t epoch_ = 0;
  std::int64_t consumed_ = 0;
  bool is_set_ = false;  // set_position() was called, and no epoch has begun since then
  std::size_t num_taken_ = 0;

  std::mutex source_mutex_;  // guards the source's position and next_number_
  const std::unique_ptr<BatchSource> source_;
  std::size_t next_number_ = 0;

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::map<std::size_t, Prepared> ready_;
  std::exception_ptr error_;
  std::vector<std::jthread> threads_;
};

}  // namespace paceline::data
