#include "paceline/training/data/data_loader.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/logical_shards.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/training/data/batch_source.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/tensor/random.h"

namespace paceline::data {
namespace {

// Without this check the first batch would fail with LibTorch's message.
void require_device(c10::Device device) try {
  if (!device.is_cpu()) choose_device(device.str(), 0);
} catch (const Error& error) {
  throw error.reworded(std::string("data loader: ") + error.what());
}

const DataLoaderOptions& valid(const DataLoaderOptions& options) {
  check(options.batch_size > 0, "data loader: batch_size is {}, but must be above 0",
        options.batch_size);
  check(options.global_batch_size >= 0,
        "data loader: global_batch_size is {}, but must be above 0, or 0 for batches of batch_size",
        options.global_batch_size);
  check(options.micro_batch_size >= 0,
        "data loader: micro_batch_size is {}, but must be above 0, or 0 for no limit",
        options.micro_batch_size);
  check(options.micro_batch_size == 0 || options.global_batch_size > 0,
        "data loader: micro_batch_size is {}, but needs global_batch_size, which is not set",
        options.micro_batch_size);
  check(options.logical_shards >= 0 && options.logical_shards <= kMaxLogicalShards,
        "data loader: logical_shards is {}, but must be 0 (none) to {}", options.logical_shards,
        kMaxLogicalShards);
  check(options.logical_shards == 0 || options.micro_batch_size == 0,
        "data loader: a micro batch size of {} with {} logical shards, although each shard is "
        "computed at once: take more shards instead",
        options.micro_batch_size, options.logical_shards);
  check(options.num_threads >= 0 && options.num_threads <= 1024,
        "data loader: num_threads is {}, but must be 0 to 1024", options.num_threads);
  check(options.prefetch > 0, "data loader: prefetch is {}, but must be above 0", options.prefetch);
  require_device(options.device);
  return options;
}

}  // namespace

DataLoader::DataLoader(std::unique_ptr<BatchSource> source, const DataLoaderOptions& options)
    : options_(options), source_(std::move(source)) {}

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, const DistributedSampler& sampler,
                       const DataLoaderOptions& options)
    : DataLoader(make_source(dataset, sampler, valid(options)), options) {}

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices,
                       const DataLoaderOptions& options)
    : DataLoader(make_source(dataset, std::move(indices), valid(options)), options) {}

DataLoader::DataLoader(std::shared_ptr<const StreamedDataset> stream, int num_ranks, int rank,
                       const DataLoaderOptions& options, std::uint64_t seed)
    : DataLoader(make_source(std::move(stream), {num_ranks, rank, seed}, valid(options)), options) {
}

DataLoader::~DataLoader() { stop_threads(); }

std::int64_t DataLoader::num_batches() const { return source_->num_batches(); }
bool DataLoader::is_streamed() const { return source_->traits().is_streamed; }
const std::string& DataLoader::name() const { return source_->traits().name; }
const std::string& DataLoader::order() const { return source_->traits().order; }
std::int64_t DataLoader::logical_shards() const { return source_->traits().logical_shards; }

DataLoader::Position DataLoader::position() const {
  if (has_ended_) return {epoch_ + 1, 0};
  return {epoch_, consumed_};
}

void DataLoader::set_position(const Position& position) {
  check(position.epoch >= 0 && position.consumed >= 0,
        "data loader: {} samples of epoch {} are not a valid position", position.consumed,
        position.epoch);
  stop_threads();
  ++num_begun_;  // ends loops over earlier epochs
  epoch_ = position.epoch;
  consumed_ = position.consumed;
  has_ended_ = exhausted_ = false;
  is_set_ = true;
}

Epoch DataLoader::epoch(std::int64_t number, std::optional<std::int64_t> from) {
  const std::int64_t consumed = from.value_or(is_set_ && number == epoch_ ? consumed_ : 0);
  if (!from) warn_of_other_epoch(number);
  is_set_ = false;
  stop_threads();
  warn_of_repeated_order(number, consumed);
  exhausted_ = !source_->begin(number, consumed);
  has_ended_ = false;
  epoch_ = number;
  consumed_ = consumed;
  num_taken_ = next_number_ = 0;
  ready_.clear();
  error_ = nullptr;
  start_threads();
  return Epoch(*this, ++num_begun_);
}

void DataLoader::warn_of_other_epoch(std::int64_t epoch) const {
  if (!is_set_ || epoch == epoch_) return;
  log::warning(fmt::format(
      "data loader: the restored position is in epoch {}, after {} samples, but the program began "
      "epoch({}): it {} epochs; begin the loop with the epoch loader.position().epoch",
      epoch_, consumed_, epoch, epoch < epoch_ ? "repeats" : "leaves out"));
}

void DataLoader::warn_of_repeated_order(std::int64_t epoch, std::int64_t consumed) {
  const bool shuffles = source_->traits().shuffles;
  if (!shuffles || warned_ || !has_ended_ || epoch != epoch_ || consumed > 0) return;
  warned_ = true;
  log::warning(fmt::format(
      "data loader: epoch({}) was called for a second pass: it repeats the order of the "
      "first; give every epoch its own number",
      epoch));
}

std::optional<Batch> Epoch::next() { return loader_->next(begun_); }

std::optional<Batch> DataLoader::next(std::uint64_t begun) {
  if (begun != num_begun_) {
    const auto rank = source_->traits().rank;
    fail(ErrorCode::kInvalid,
         "{}data loader: a loop takes a batch of an epoch that ended when {} was called: a loader "
         "has "
         "one epoch at a time; make a loader for each loop",
         rank ? fmt::format("rank {}: ", *rank) : "",
         is_set_ ? "set_position() or Checkpointer::begin()" : fmt::format("epoch({})", epoch_));
  }
  if (exhausted_) {
    has_ended_ = true;
    return std::nullopt;
  }
  if (options_.num_threads == 0 && !error_) {
    try {
      auto [number, draft] = take_draft().value();
      ready_.emplace(number, prepare(std::move(draft)));
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  Prepared taken = take_prepared();
  ++num_taken_;
  exhausted_ = taken.ends_epoch;
  if (taken.batch.ends_step) consumed_ = taken.consumed;
  if (taken.batch.shard >= 0) {
    taken.batch.seed =
        seed_of_shard(source_->traits().seed, epoch_, taken.position, taken.batch.shard);
    seed_rank(taken.batch.seed);
  }
  if (!options_.device.is_cpu()) move_to_device(taken.batch);
  return std::move(taken.batch);
}

void DataLoader::move_to_device(Batch& batch) const {
  for (at::Tensor& tensor : batch.tensors)
    tensor = tensor.to(options_.device, /*non_blocking=*/true);
  batch.data = batch.tensors[0];
  if (batch.tensors.size() > 1) batch.target = batch.tensors[1];
}

DataLoader::Prepared DataLoader::take_prepared() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || ready_.contains(num_taken_); });
  if (error_) std::rethrow_exception(error_);
  Prepared prepared = std::move(ready_.extract(num_taken_).mapped());
  lock.unlock();
  changed_.notify_all();
  return prepared;
}

void DataLoader::start_threads() {
  if (exhausted_) return;
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
  try {
    while (wait_for_room(stop)) {
      auto draft = take_draft();
      if (!draft) return;
      Prepared prepared = prepare(std::move(draft->second));
      const std::lock_guard lock(mutex_);
      ready_.emplace(draft->first, std::move(prepared));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    changed_.notify_all();
  }
}

// Returns false if the thread should end.
bool DataLoader::wait_for_room(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return stop.stop_requested() || error_; };
  changed_.wait(lock, [&] { return is_over() || std::ssize(ready_) < options_.prefetch; });
  return !is_over();
}

std::optional<std::pair<std::size_t, Draft>> DataLoader::take_draft() {
  const std::lock_guard lock(source_mutex_);
  auto draft = source_->next();
  if (!draft) return {};
  return std::pair(next_number_++, std::move(*draft));
}

DataLoader::Prepared DataLoader::prepare(Draft draft) const {
  Batch batch{.tensors = source_->tensors(draft),
              .weight = draft.plan.weight,
              .ends_step = draft.plan.ends_step,
              .shard = draft.plan.shard};
  const auto count = std::ssize(draft.plan.indices);
  check(!batch.tensors.empty(), "data loader: {} gave a batch without tensors", name());
  for (const at::Tensor& tensor : batch.tensors) {
    check(tensor.defined() && tensor.dim() > 0 && tensor.size(0) == count,
          "data loader: {} gave a batch of {} samples with a tensor of another number", name(),
          count);
  }
  batch.indices = std::move(draft.plan.indices);
  if (!options_.device.is_cpu()) {
    // Otherwise pinning would use device 0, which may be another rank's.
    const c10::OptionalDeviceGuard guard(options_.device);
    for (at::Tensor& tensor : batch.tensors) tensor = tensor.pin_memory();
  }
  batch.data = batch.tensors[0];
  if (batch.tensors.size() > 1) batch.target = batch.tensors[1];
  return {std::move(batch), draft.plan.consumed, draft.plan.position, draft.ends_epoch};
}

}  // namespace paceline::data
