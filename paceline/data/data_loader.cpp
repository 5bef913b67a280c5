#include "paceline/data/data_loader.h"

#include <algorithm>

#include "paceline/core/check.h"
#include "paceline/core/log.h"
#include "paceline/core/thread.h"
#include "paceline/tensor/random.h"

namespace paceline::data {
namespace {

void require_valid(const DataLoaderOptions& options) {
  check(options.batch_size > 0, "data loader: the batch size {} is not above 0",
        options.batch_size);
  check(options.global_batch_size >= 0 && options.micro_batch_size >= 0,
        "data loader: a global batch size of {} in parts of {}", options.global_batch_size,
        options.micro_batch_size);
  check(options.micro_batch_size == 0 || options.global_batch_size > 0,
        "data loader: a micro batch size of {} without a global batch size",
        options.micro_batch_size);
  check(options.logical_shards >= 0 && options.logical_shards <= kMaxLogicalShards,
        "data loader: {} logical shards", options.logical_shards);
  check(options.logical_shards == 0 || options.micro_batch_size == 0,
        "data loader: a micro batch size of {} beside {} logical shards, of which each is computed "
        "at once: take more shards instead",
        options.micro_batch_size, options.logical_shards);
  check(options.num_threads >= 0 && options.num_threads <= 1024, "data loader: {} threads",
        options.num_threads);
  check(options.prefetch > 0, "data loader: the prefetch {} is not above 0", options.prefetch);
}

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, const DistributedSampler& sampler,
                       const DataLoaderOptions& options)
    : dataset_(std::move(dataset)), sampler_(sampler), options_(options) {
  require_valid(options_);
  check(sampler.num_samples() == dataset_->size(),
        "data loader: the sampler is for {} samples, {} has {}", sampler.num_samples(),
        dataset_->name(), dataset_->size());
  if (options_.logical_shards > 0)
    shards_of(options_.logical_shards, sampler.num_replicas(), sampler.rank());
}

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices,
                       const DataLoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options), indices_(std::move(indices)) {
  require_valid(options_);
  for (const auto index : indices_) {
    check(index >= 0 && index < dataset_->size(), "data loader: the index {} is not in [0, {})",
          index, dataset_->size());
  }
}

DataLoader::~DataLoader() { stop_threads(); }

void DataLoader::begin_epoch(std::int64_t epoch, std::int64_t consumed) {
  stop_threads();
  warn_of_repeated_order(epoch, consumed);
  if (sampler_) sampler_->set_epoch(epoch, consumed);
  plan_ = plan();
  if (consumed == 0) require_batches();
  state_ = State::kInEpoch;
  epoch_ = epoch;
  consumed_ = consumed;
  num_taken_ = next_to_prepare_ = 0;
  ready_.clear();
  error_ = nullptr;
  start_threads();
}

void DataLoader::warn_of_repeated_order(std::int64_t epoch, std::int64_t consumed) {
  const bool shuffles = sampler_ && sampler_->options().shuffle;
  if (!shuffles || warned_ || state_ != State::kEnded || epoch != epoch_ || consumed > 0) return;
  warned_ = true;
  log::warning(
      fmt::format("data loader: begin_epoch({}) was called for a second pass: it repeats the order "
                  "of the first; give every epoch its own number",
                  epoch));
}

void DataLoader::require_batches() const {
  if (!sampler_ || !plan_.empty()) return;
  const bool global = global_size() > 0;
  fail(
      ErrorCode::kInvalid,
      "rank {}: data loader: drop_last leaves no batch of an epoch: {} samples for {} ranks, and a "
      "{} of {}; take a smaller one, or keep the last batch",
      sampler_->rank(), sampler_->num_samples(), sampler_->num_replicas(),
      global ? "global batch size" : "batch size of each rank",
      global ? global_size() : options_.batch_size);
}

void DataLoader::require_begun() const {
  if (state_ == State::kInEpoch) return;
  const std::string who = sampler_ ? fmt::format("rank {}: ", sampler_->rank()) : "";
  check(state_ == State::kEnded,
        "{}data loader: next() was called before begin_epoch(): call begin_epoch(epoch) before the "
        "first batch of every epoch",
        who);
  fail(ErrorCode::kInvalid,
       "{}data loader: next() was called after the end of epoch {}: call begin_epoch({}) before "
       "the first batch of the next epoch",
       who, epoch_, epoch_ + 1);
}

std::int64_t DataLoader::global_size() const {
  if (!sampler_) return 0;
  if (options_.global_batch_size > 0) return options_.global_batch_size;
  return options_.logical_shards * options_.batch_size;
}

std::vector<PlannedBatch> DataLoader::plan() const {
  const bool global = global_size() > 0;
  const BatchSplit split{
      .size = global ? global_size() : options_.batch_size,
      .micro_size = options_.micro_batch_size,
      .drop_last = options_.drop_last || (global && sampler_->options().drop_last),
      .num_ranks = sampler_ ? sampler_->num_replicas() : 1,
      .rank = sampler_ ? sampler_->rank() : 0,
      .num_shards = logical_shards()};
  if (!sampler_) return plan_batches(indices_, 0, split);
  if (!global) return plan_batches(sampler_->indices(), sampler_->consumed(), split);
  return plan_global_batches(sampler_->order(), sampler_->consumed(), split);
}

std::int64_t DataLoader::num_batches() const {
  const bool global = global_size() > 0;
  auto samples = static_cast<std::int64_t>(indices_.size());
  bool drop_last = options_.drop_last;
  if (global) {
    samples = sampler_->num_samples();
    drop_last = drop_last || sampler_->options().drop_last;
  } else if (sampler_) {
    DistributedSampler whole = *sampler_;
    whole.set_epoch(sampler_->epoch());
    samples = whole.size();
  }
  const std::int64_t size = global ? global_size() : options_.batch_size;
  return drop_last ? samples / size : (samples + size - 1) / size;
}

std::optional<Batch> DataLoader::next() {
  require_begun();
  if (exhausted()) {
    state_ = State::kEnded;
    return std::nullopt;
  }
  Batch batch;
  if (options_.num_threads == 0) {
    batch = prepare(plan_[num_taken_]);
  } else {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || ready_.contains(num_taken_); });
    if (error_) std::rethrow_exception(error_);
    batch = std::move(ready_.extract(num_taken_).mapped());
    lock.unlock();
    changed_.notify_all();
  }
  const PlannedBatch& taken = plan_[num_taken_++];
  if (taken.ends_step) {
    // The padding is none of the epoch's samples, and depends on the number of ranks.
    consumed_ = sampler_ ? std::min(taken.consumed, sampler_->num_samples()) : taken.consumed;
  }
  if (taken.shard >= 0)
    seed_rank(seed_of_shard(sampler_->options().seed, epoch_, taken.position, taken.shard));
  return batch;
}

void DataLoader::start_threads() {
  for (int i = 0; i < options_.num_threads; ++i) {
    threads_.push_back(start_thread("paceline-data", [this](std::stop_token stop) { work(stop); }));
  }
}

void DataLoader::stop_threads() {
  {
    const std::lock_guard lock(mutex_);
    for (auto& thread : threads_) thread.request_stop();
  }
  changed_.notify_all();
  threads_.clear();
}

void DataLoader::work(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested() && !error_ && next_to_prepare_ < plan_.size()) {
    const auto room = [&] { return static_cast<int>(ready_.size()) < options_.prefetch; };
    changed_.wait(lock, [&] { return stop.stop_requested() || error_ || room(); });
    if (stop.stop_requested() || error_ || next_to_prepare_ >= plan_.size()) break;
    const std::size_t number = next_to_prepare_++;
    lock.unlock();
    std::optional<Batch> batch;
    std::exception_ptr error;
    try {
      batch = prepare(plan_[number]);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (batch) ready_.emplace(number, std::move(*batch));
    if (error) error_ = error;
    changed_.notify_all();
  }
}

Batch DataLoader::prepare(const PlannedBatch& planned) const {
  Batch batch{.indices = planned.indices,
              .weight = planned.weight,
              .ends_step = planned.ends_step,
              .shard = planned.shard};
  batch.tensors = dataset_->batch(planned.indices, epoch_);
  const auto count = std::ssize(planned.indices);
  check(!batch.tensors.empty(), "data loader: {} gave a batch without tensors", dataset_->name());
  for (const at::Tensor& tensor : batch.tensors) {
    check(tensor.defined() && tensor.dim() > 0 && tensor.size(0) == count,
          "data loader: {} gave a batch of {} samples with a tensor of another number",
          dataset_->name(), count);
  }
  batch.data = batch.tensors[0];
  if (batch.tensors.size() > 1) batch.target = batch.tensors[1];
  return batch;
}

}  // namespace paceline::data
