#include "paceline/data/data_loader.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "paceline/core/check.h"
#include "paceline/core/thread.h"

namespace paceline::data {
namespace {

ImageShape shape_of(const ImageDataset& dataset) {
  return {dataset.channels(), dataset.height(), dataset.width()};
}

void require_valid(const DataLoaderOptions& options) {
  check(options.batch_size > 0, "data loader: the batch size {} is not above 0",
        options.batch_size);
  check(options.num_threads >= 0 && options.num_threads <= 1024, "data loader: {} threads",
        options.num_threads);
  check(options.prefetch > 0, "data loader: the prefetch {} is not above 0", options.prefetch);
}

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const ImageDataset> dataset,
                       const DistributedSampler& sampler, const DataLoaderOptions& options)
    : dataset_(std::move(dataset)),
      sampler_(sampler),
      options_(options),
      transform_(shape_of(*dataset_), options.transform, sampler.options().seed) {
  require_valid(options_);
  check(sampler.num_samples() == dataset_->size(),
        "data loader: the sampler is for {} samples, {} has {}", sampler.num_samples(),
        dataset_->name, dataset_->size());
}

DataLoader::DataLoader(std::shared_ptr<const ImageDataset> dataset,
                       std::vector<std::int64_t> indices, const DataLoaderOptions& options)
    : dataset_(std::move(dataset)),
      options_(options),
      transform_(shape_of(*dataset_), options.transform),
      indices_(std::move(indices)) {
  require_valid(options_);
  for (const auto index : indices_) {
    check(index >= 0 && index < dataset_->size(), "data loader: the index {} is not in [0, {})",
          index, dataset_->size());
  }
}

DataLoader::~DataLoader() { stop_threads(); }

void DataLoader::begin_epoch(std::int64_t epoch, std::int64_t consumed) {
  stop_threads();
  if (sampler_) {
    sampler_->set_epoch(epoch, consumed);
    indices_ = sampler_->indices();
  }
  epoch_ = epoch;
  begin_ = consumed;
  num_taken_ = samples_taken_ = next_to_prepare_ = 0;
  ready_.clear();
  error_ = nullptr;
  start_threads();
}

std::int64_t DataLoader::batches_in(std::int64_t num_samples) const {
  return options_.drop_last ? num_samples / options_.batch_size
                            : (num_samples + options_.batch_size - 1) / options_.batch_size;
}

std::int64_t DataLoader::num_batches() const {
  if (!sampler_) return batches_in(static_cast<std::int64_t>(indices_.size()));
  DistributedSampler whole = *sampler_;
  whole.set_epoch(sampler_->epoch());
  return batches_in(whole.size());
}

std::int64_t DataLoader::consumed() const {
  return begin_ + samples_taken_ * (sampler_ ? sampler_->num_replicas() : 1);
}

std::optional<Batch> DataLoader::next() {
  if (num_taken_ >= batches_in(static_cast<std::int64_t>(indices_.size()))) return std::nullopt;
  Batch batch;
  if (options_.num_threads == 0) {
    batch = prepare(num_taken_);
  } else {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || ready_.contains(num_taken_); });
    if (error_) std::rethrow_exception(error_);
    batch = std::move(ready_.extract(num_taken_).mapped());
    lock.unlock();
    changed_.notify_all();
  }
  ++num_taken_;
  samples_taken_ += static_cast<std::int64_t>(batch.indices.size());
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
  const std::int64_t num_batches = batches_in(static_cast<std::int64_t>(indices_.size()));
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested() && !error_ && next_to_prepare_ < num_batches) {
    const auto room = [&] { return static_cast<int>(ready_.size()) < options_.prefetch; };
    changed_.wait(lock, [&] { return stop.stop_requested() || error_ || room(); });
    if (stop.stop_requested() || error_ || next_to_prepare_ >= num_batches) break;
    const std::int64_t number = next_to_prepare_++;
    lock.unlock();
    std::optional<Batch> batch;
    std::exception_ptr error;
    try {
      batch = prepare(number);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (batch) ready_.emplace(number, std::move(*batch));
    if (error) error_ = error;
    changed_.notify_all();
  }
}

Batch DataLoader::prepare(std::int64_t number) const {
  const auto begin = static_cast<std::size_t>(number * options_.batch_size);
  const std::size_t end =
      std::min(indices_.size(), begin + static_cast<std::size_t>(options_.batch_size));
  const auto count = static_cast<std::int64_t>(end - begin);
  const ImageShape shape = shape_of(*dataset_);
  const auto format =
      options_.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  Batch batch;
  batch.data = at::empty({count, shape.channels, shape.height, shape.width},
                         at::TensorOptions(at::kFloat).memory_format(format));
  batch.target = at::empty({count}, at::kLong);
  auto* const data = batch.data.data_ptr<float>();
  auto* const target = batch.target.data_ptr<std::int64_t>();
  const auto* const images = dataset_->images.data_ptr<std::uint8_t>();
  const auto* const labels = dataset_->labels.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t index = indices_[begin + static_cast<std::size_t>(i)];
    transform_.apply(images + index * shape.pixels(), data + i * shape.pixels(),
                     options_.channels_last, epoch_, index);
    target[i] = labels[index];
    batch.indices.push_back(index);
  }
  return batch;
}

}  // namespace paceline::data
