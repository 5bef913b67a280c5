#include "paceline/training/data/batch_source.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/logical_shards.h"

namespace paceline::data {

namespace {

using Indices = std::vector<std::int64_t>;

// Adds the samples of a rank or of a shard as batches of nearly equal size; `step` has the values
// that these batches have in common.
void add_share(std::vector<PlannedBatch>& plan, const PlannedBatch& step, const Indices& share,
               double weight_of_sample, std::int64_t micro_size) {
  const auto size = static_cast<std::int64_t>(share.size());
  const std::int64_t parts = micro_size > 0 ? (size + micro_size - 1) / micro_size : 1;
  for (std::int64_t part = 0; part < parts; ++part) {
    const auto begin = part * size / parts, end = (part + 1) * size / parts;
    PlannedBatch batch = step;
    batch.indices = {share.begin() + begin, share.begin() + end};
    batch.weight = weight_of_sample * static_cast<double>(end - begin);
    plan.push_back(std::move(batch));
  }
}

}  // namespace

std::vector<PlannedBatch> plan_batches(const Indices& indices, std::int64_t consumed,
                                       const BatchSplit& split) {
  std::vector<PlannedBatch> plan;
  const auto size = static_cast<std::int64_t>(indices.size());
  for (std::int64_t begin = 0; begin < size; begin += split.size) {
    const std::int64_t end = std::min(size, begin + split.size);
    if (split.drop_last && end - begin < split.size) break;
    plan.push_back({.indices = {indices.begin() + begin, indices.begin() + end},
                    .consumed = consumed + end * split.num_ranks});
  }
  return plan;
}

std::vector<PlannedBatch> plan_whole_batches(const Indices& order, std::int64_t consumed,
                                             const BatchSplit& split) {
  std::vector<PlannedBatch> plan;
  const std::int64_t count = std::ssize(order) / split.size;
  if (consumed >= count * split.size) return plan;
  check(consumed % split.size == 0,
        "{} samples of the epoch are consumed, which is not a whole number of batches of {}: "
        "continue with the batch size that the epoch began with",
        consumed, split.size);
  for (std::int64_t first = consumed / split.size; first < count; first += split.num_ranks) {
    if (split.drop_last && first + split.num_ranks > count) break;
    const auto begin = order.begin() + (first + split.rank) % count * split.size;
    plan.push_back({.indices = {begin, begin + split.size},
                    .consumed = (first + split.num_ranks) * split.size});
  }
  return plan;
}

std::vector<PlannedBatch> plan_global_batches(const Indices& order, std::int64_t consumed,
                                              const BatchSplit& split) {
  const bool in_shards = split.num_shards > 0;
  const std::int64_t num_shares = in_shards ? split.num_shards : split.num_ranks;
  const ShardBlock own = in_shards ? shards_of(split.num_shards, split.num_ranks, split.rank)
                                   : ShardBlock{split.rank, 1};
  std::vector<PlannedBatch> plan;
  const auto size = static_cast<std::int64_t>(order.size());
  for (std::int64_t begin = consumed; begin < size; begin += split.size) {
    const std::int64_t end = std::min(size, begin + split.size);
    if (split.drop_last && end - begin < split.size) break;
    for (std::int64_t turn = own.first; turn < own.first + own.count; ++turn) {
      Indices share;
      for (std::int64_t place = begin + turn; place < end; place += num_shares)
        share.push_back(order[static_cast<std::size_t>(place)]);
      const double weight =
          share.empty() ? 0 : static_cast<double>(num_shares) / static_cast<double>(end - begin);
      if (share.empty()) share = {order[static_cast<std::size_t>(begin)]};
      const PlannedBatch step{
          .ends_step = false, .consumed = end, .position = begin, .shard = in_shards ? turn : -1};
      add_share(plan, step, share, weight, split.micro_size);
    }
    plan.back().ends_step = true;
  }
  return plan;
}

namespace {

// The number of samples in a step of all ranks; 0: each rank has its own steps.
std::int64_t global_size_of(const DataLoaderOptions& options) {
  if (options.global_batch_size > 0) return options.global_batch_size;
  return options.logical_shards * options.batch_size;
}

BatchSplit split_of(const DataLoaderOptions& options, int num_ranks, int rank) {
  const std::int64_t global = global_size_of(options);
  if (options.logical_shards > 0) shards_of(options.logical_shards, num_ranks, rank);
  return {.size = global > 0 ? global : options.batch_size,
          .micro_size = options.micro_batch_size,
          .drop_last = options.drop_last,
          .num_ranks = num_ranks,
          .rank = rank,
          .num_shards = options.logical_shards};
}

std::int64_t ratio(std::int64_t count, std::int64_t size, bool drop_last) {
  return drop_last ? count / size : (count + size - 1) / size;
}

// --- Samples of a Dataset ---

class PlannedSource : public BatchSource {
 public:
  bool begin(std::int64_t epoch, std::int64_t consumed) override {
    epoch_ = epoch;
    plan_ = plan(epoch, consumed);
    next_ = 0;
    return !plan_.empty();
  }

  std::optional<Draft> next() override {
    if (next_ == plan_.size()) return {};
    Draft draft{.plan = std::move(plan_[next_++]), .epoch = epoch_};
    draft.ends_epoch = next_ == plan_.size();
    return draft;
  }

  std::vector<at::Tensor> tensors(const Draft& draft) const override {
    return dataset_->batch(draft.plan.indices, draft.epoch);
  }

 protected:
  PlannedSource(const SourceTraits& traits, std::shared_ptr<const Dataset> dataset)
      : BatchSource(traits), dataset_(std::move(dataset)) {}

  const Dataset& dataset() const { return *dataset_; }

 private:
  virtual std::vector<PlannedBatch> plan(std::int64_t epoch, std::int64_t consumed) = 0;

  const std::shared_ptr<const Dataset> dataset_;  // shared with the loader's user
  std::vector<PlannedBatch> plan_;                // from the position at which the epoch was begun
  std::size_t next_ = 0;
  std::int64_t epoch_ = 0;
};

// The source for exactly the given samples.
class ListSource : public PlannedSource {
 public:
  ListSource(const std::shared_ptr<const Dataset>& dataset, Indices indices,
             const DataLoaderOptions& options)
      : PlannedSource({.name = dataset->name()}, dataset),
        indices_(std::move(indices)),
        split_{.size = options.batch_size, .drop_last = options.drop_last} {
    check(!options.groups, "data loader: groups require a sampler");
    for (const auto index : indices_) {
      check(index >= 0 && index < dataset->size(), "data loader: the index {} is not in [0, {})",
            index, dataset->size());
    }
  }

  std::int64_t num_batches() const override {
    return ratio(std::ssize(indices_), split_.size, split_.drop_last);
  }

 private:
  std::vector<PlannedBatch> plan(std::int64_t /*epoch*/, std::int64_t /*consumed*/) override {
    return plan_batches(indices_, 0, split_);
  }

  const Indices indices_;
  const BatchSplit split_;
};

// Describes the order of an epoch's samples: "2000 samples, shuffled with seed 3".
std::string order_of(const DistributedSampler& sampler) {
  const auto& options = sampler.options();
  return fmt::format("{}, {}", counted(sampler.num_samples(), "sample"),
                     options.shuffle ? fmt::format("shuffled with seed {}", options.seed)
                                     : std::string("in order"));
}

// The source for this rank's share of an epoch.
class SampledSource : public PlannedSource {
 public:
  SampledSource(const std::shared_ptr<const Dataset>& dataset, const DistributedSampler& sampler,
                const DataLoaderOptions& options)
      : PlannedSource({.name = dataset->name(),
                       .order = order_of(sampler),
                       .rank = sampler.rank(),
                       .seed = sampler.options().seed,
                       .shuffles = sampler.options().shuffle,
                       .logical_shards = options.logical_shards},
                      dataset),
        sampler_(sampler),
        groups_(options.groups),
        is_global_(global_size_of(options) > 0),
        split_(split_with_samplers_tail(options, sampler)) {
    check(sampler.num_samples() == dataset->size(),
          "data loader: the sampler is for {} samples, {} has {}", sampler.num_samples(),
          dataset->name(), dataset->size());
    if (groups_) require_groups();
  }

  std::int64_t num_batches() const override {
    const std::int64_t samples = sampler_.num_samples();
    if (groups_ && is_global_) return samples / split_.size;
    if (groups_) return ratio(samples / split_.size, split_.num_ranks, split_.drop_last);
    if (is_global_) return ratio(samples, split_.size, split_.drop_last);
    DistributedSampler whole = sampler_;
    whole.set_epoch(sampler_.epoch());
    return ratio(whole.size(), split_.size, split_.drop_last);
  }

 private:
  // If the sampler drops the last samples of an epoch, global batches and batches of groups leave
  // out an incomplete last step.
  static BatchSplit split_with_samplers_tail(const DataLoaderOptions& options,
                                             const DistributedSampler& sampler) {
    BatchSplit split = split_of(options, sampler.num_replicas(), sampler.rank());
    const bool by_the_order = global_size_of(options) > 0 || options.groups;
    split.drop_last |= by_the_order && sampler.options().drop_last;
    return split;
  }

  void require_groups() const {
    check(std::ssize(*groups_) == sampler_.num_samples(),
          "data loader: groups of {} samples, {} has {}", groups_->size(), traits().name,
          sampler_.num_samples());
    check(sampler_.num_samples() >= split_.size,
          "data loader: {} has {} samples, which fill no batch of {} of one group", traits().name,
          sampler_.num_samples(), split_.size);
  }

  std::vector<PlannedBatch> plan(std::int64_t epoch, std::int64_t consumed) override {
    sampler_.set_epoch(epoch, consumed);
    auto plan = batches();
    // Padding is not counted, because it depends on the number of ranks.
    for (PlannedBatch& batch : plan)
      batch.consumed = std::min(batch.consumed, sampler_.num_samples());
    if (consumed == 0 && plan.empty()) fail_without_batches();
    return plan;
  }

  std::vector<PlannedBatch> batches() const {
    const std::int64_t consumed = sampler_.consumed();
    if (!groups_ && !is_global_) return plan_batches(sampler_.indices(), consumed, split_);
    Indices order = sampler_.order();
    if (groups_) order = grouped_order(order, *groups_, split_.size);
    if (is_global_) return plan_global_batches(order, consumed, split_);
    return plan_whole_batches(order, consumed, split_);
  }

  [[noreturn]] void fail_without_batches() const {
    fail(
        ErrorCode::kInvalid,
        "rank {}: data loader: drop_last leaves no batch of an epoch: {} samples for {} ranks, and "
        "a {} of {}; take a smaller one, or keep the last batch",
        sampler_.rank(), sampler_.num_samples(), sampler_.num_replicas(),
        is_global_ ? "global batch size" : "batch size of each rank", split_.size);
  }

  DistributedSampler sampler_;
  const Groups groups_;
  const bool is_global_;
  const BatchSplit split_;
};

// --- Records of a stream ---

class StreamSource : public BatchSource {
 public:
  StreamSource(std::shared_ptr<const StreamedDataset> stream, const StreamShare& share,
               const DataLoaderOptions& options)
      : BatchSource({.name = stream->name(),
                     .rank = share.rank,
                     .seed = share.seed,
                     .is_streamed = true,
                     .logical_shards = options.logical_shards}),
        stream_(std::move(stream)),
        split_(split_of(options, share.num_ranks, share.rank)),
        step_size_(global_size_of(options) > 0 ? split_.size : split_.size * split_.num_ranks),
        is_global_(global_size_of(options) > 0) {
    check(!options.groups, "data loader: the samples of a stream have no groups");
    check(share.num_ranks > 0 && share.rank >= 0 && share.rank < share.num_ranks,
          "data loader: rank {} is not in [0, {})", share.rank, share.num_ranks);
  }

  bool begin(std::int64_t epoch, std::int64_t consumed) override {
    epoch_ = epoch;
    consumed_ = consumed;
    reader_ = stream_->read(epoch);
    const std::int64_t skipped = reader_->skip(consumed);
    check(skipped == consumed,
          "{} has {} records; an epoch cannot be continued after {}: the files have changed",
          name(), skipped, consumed);
    read_step();
    return !drafts_.empty();
  }

  std::optional<Draft> next() override {
    if (drafts_.empty()) return {};
    Draft draft = std::move(drafts_.front());
    drafts_.pop_front();
    if (drafts_.empty()) read_step();
    draft.ends_epoch = drafts_.empty();
    return draft;
  }

  std::vector<at::Tensor> tensors(const Draft& draft) const override {
    return stream_->batch(draft.records, draft.epoch);
  }

  std::int64_t num_batches() const override { return 0; }

 private:
  const std::string& name() const { return traits().name; }

  // Reads the records of the next step of all ranks, and makes this rank's batches from them.
  void read_step() {
    std::vector<StreamedDataset::Record> records;
    while (std::ssize(records) < step_size_) {
      auto record = reader_->next();
      if (!record) break;
      record->number = consumed_ + std::ssize(records);
      records.push_back(std::move(*record));
    }
    if (records.empty() || (split_.drop_last && std::ssize(records) < step_size_)) return;
    for (PlannedBatch& batch : batches_of(std::ssize(records))) {
      Draft draft{.plan = std::move(batch), .epoch = epoch_};
      for (std::int64_t& index : draft.plan.indices) {
        draft.records.push_back(records[static_cast<std::size_t>(index)]);
        index += consumed_;
      }
      draft.plan.consumed = consumed_ + std::ssize(records);
      draft.plan.position = consumed_;
      drafts_.push_back(std::move(draft));
    }
    consumed_ += std::ssize(records);
  }

  // Returns this rank's batches of a step of `count` records, which are numbered by their position
  // in the step.
  std::vector<PlannedBatch> batches_of(std::int64_t count) const {
    Indices places(static_cast<std::size_t>(count));
    std::iota(places.begin(), places.end(), 0);
    if (is_global_) return plan_global_batches(places, 0, split_);
    Indices own;
    for (std::int64_t i = 0; i < ratio(count, split_.num_ranks, false); ++i)
      own.push_back((i * split_.num_ranks + split_.rank) % count);
    return plan_batches(own, 0, split_);
  }

  const std::shared_ptr<const StreamedDataset> stream_;  // shared with the loader's user
  const BatchSplit split_;
  const std::int64_t step_size_;  // records of a step of all ranks
  const bool is_global_;
  std::int64_t epoch_ = 0;
  std::int64_t consumed_ = 0;  // records consumed by all ranks, up to the last draft
  std::unique_ptr<StreamedDataset::Reader> reader_;
  std::deque<Draft> drafts_;  // of the current step
};

}  // namespace

std::unique_ptr<BatchSource> make_source(const std::shared_ptr<const Dataset>& dataset,
                                         const DistributedSampler& sampler,
                                         const DataLoaderOptions& options) {
  return std::make_unique<SampledSource>(dataset, sampler, options);
}

std::unique_ptr<BatchSource> make_source(const std::shared_ptr<const Dataset>& dataset,
                                         std::vector<std::int64_t> indices,
                                         const DataLoaderOptions& options) {
  return std::make_unique<ListSource>(dataset, std::move(indices), options);
}

std::unique_ptr<BatchSource> make_source(std::shared_ptr<const StreamedDataset> stream,
                                         const StreamShare& share,
                                         const DataLoaderOptions& options) {
  return std::make_unique<StreamSource>(std::move(stream), share, options);
}

}  // namespace paceline::data
