#include "paceline/training/parameter_server/row_prefetcher.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/system/thread.h"

namespace paceline::tables {

RowPrefetcher::RowPrefetcher(Rows& rows)
    : rows_(rows), has_clock_(rows.consistency().kind() != Consistency::Kind::kAsynchronous) {}

RowPrefetcher::~RowPrefetcher() {
  if (!thread_) return;
  {
    const std::lock_guard lock(mutex_);
    thread_->request_stop();
  }
  changed_.notify_all();
}

void RowPrefetcher::start(std::vector<Id> ids) {
  {
    const std::lock_guard lock(mutex_);
    Batch& batch = batches_.emplace_back();
    batch.ids = std::move(ids);
    batch.may_begin = !has_clock_;
  }
  if (!thread_)
    thread_ = start_thread("paceline-rows", [this](std::stop_token stop) { run(stop); });
  changed_.notify_all();
}

RowPrefetcher::Batch* RowPrefetcher::next_to_pull() {
  const auto next = std::find_if(batches_.begin(), batches_.end(), [](const Batch& batch) {
    return batch.may_begin && batch.state == State::kQueued;
  });
  return next == batches_.end() ? nullptr : &*next;
}

void RowPrefetcher::run(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  for (;;) {
    Batch* batch = nullptr;
    changed_.wait(lock, [&] { return stop.stop_requested() || (batch = next_to_pull()); });
    if (stop.stop_requested()) return;
    batch->state = State::kPulling;
    batch->is_stale = false;
    batch->error = nullptr;
    batch->pushes.clear();
    lock.unlock();
    std::exception_ptr error;
    try {
      const auto size = static_cast<std::int64_t>(batch->ids.size());
      if (!batch->values.defined())
        batch->values = at::empty({size, static_cast<std::int64_t>(rows_.width())});
      rows_.pull(batch->ids, {batch->values.data_ptr<float>(), batch->ids.size() * rows_.width()});
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    batch->error = error;
    batch->state = batch->is_stale ? State::kQueued : State::kPulled;
    changed_.notify_all();
  }
}

std::optional<at::Tensor> RowPrefetcher::take(std::span<const Id> ids) {
  std::unique_lock lock(mutex_);
  const bool is_next = !batches_.empty() && batches_.front().may_begin &&
                       std::ranges::equal(batches_.front().ids, ids);
  const auto is_idle = [&](const Batch& batch) { return batch.state != State::kPulling; };
  if (!is_next) {
    for (Batch& batch : batches_) batch.may_begin = false;
    changed_.wait(lock, [&] { return std::ranges::all_of(batches_, is_idle); });
    batches_.clear();
    return std::nullopt;
  }
  changed_.wait(lock, [&] { return batches_.front().state == State::kPulled; });
  Batch batch = std::move(batches_.front());
  batches_.pop_front();  // the thread may be pulling another element, which keeps its place
  lock.unlock();
  if (batch.error) std::rethrow_exception(batch.error);
  refresh(batch);
  return batch.values;
}

void RowPrefetcher::refresh(Batch& batch) {
  if (batch.pushes.empty()) return;
  std::vector<std::size_t> places;
  for (const std::vector<Id>& push : batch.pushes) {
    RowBatch pushed;
    pushed.assign(push);
    for (std::size_t place = 0; place < batch.ids.size(); ++place)
      if (pushed.contains(batch.ids[place])) places.push_back(place);
  }
  std::ranges::sort(places);
  places.erase(std::ranges::unique(places).begin(), places.end());
  std::vector<Id> ids;
  for (const std::size_t place : places) ids.push_back(batch.ids[place]);
  const std::size_t width = rows_.width();
  std::vector<float> values(ids.size() * width);
  rows_.pull(ids, values);
  float* const all = batch.values.data_ptr<float>();
  for (std::size_t i = 0; i < places.size(); ++i)
    std::memcpy(all + places[i] * width, values.data() + i * width, width * sizeof(float));
}

void RowPrefetcher::note_push(std::span<const Id> ids) {
  if (has_clock_) return;  // the rows are pulled after the tick
  const std::lock_guard lock(mutex_);
  for (Batch& batch : batches_)
    if (batch.state != State::kQueued) batch.pushes.emplace_back(ids.begin(), ids.end());
}

void RowPrefetcher::note_tick() {
  if (!has_clock_) return;
  {
    const std::lock_guard lock(mutex_);
    for (Batch& batch : batches_) {
      batch.may_begin = true;
      if (batch.state == State::kPulling) batch.is_stale = true;
      if (batch.state == State::kPulled) batch.state = State::kQueued;
    }
  }
  changed_.notify_all();
}

}  // namespace paceline::tables
