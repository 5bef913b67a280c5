#include "paceline/training/parameter_server/remote_embedding.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/tables/row_batch.h"
#include "paceline/engine/tables/rows.h"
#include "paceline/training/tensor/libtorch_version.h"

namespace paceline::tables {

// Pulls the rows of coming batches on a thread of its own ("paceline-rows") while the caller
// computes. A batch that was pulled early keeps the guarantee of its table:
//
// - Rows that this worker has pushed since the pull are pulled again, so a worker sees its pushes.
// - With a synchronous or bounded table, which has a clock, a batch is pulled only after the last
//   tick before the batch is used.
//
// Thread safety: one thread calls the methods.
class RowPrefetcher {
 public:
  // Requires: `rows` outlives this object.
  explicit RowPrefetcher(Rows& rows);
  // Waits for a pull that is under way, at most for the table's timeout.
  ~RowPrefetcher();
  RowPrefetcher(const RowPrefetcher&) = delete;
  RowPrefetcher& operator=(const RowPrefetcher&) = delete;

  // Queues a pull of these rows. With a clock it begins at the next tick.
  void start(std::vector<Id> ids);
  // Returns the rows [ids, width] if the oldest queued batch has these ids, after a wait for its
  // pull. Otherwise drops all queued batches and returns nullopt. Throws the error of the pull.
  std::optional<at::Tensor> take(std::span<const Id> ids);
  // Notes that this worker is about to push, or has pushed, these rows.
  void note_push(std::span<const Id> ids);
  // Notes that a clock of this worker has ended.
  void note_tick();

 private:
  enum class State { kQueued, kPulling, kPulled };
  struct Batch {
    std::vector<Id> ids;
    State state = State::kQueued;
    bool may_begin = false;
    bool is_stale = false;  // the clock ended during the pull
    at::Tensor values;
    std::exception_ptr error;
    std::vector<std::vector<Id>> pushes;  // since the pull began
  };

  void run(std::stop_token stop);
  Batch* next_to_pull();
  void refresh(Batch& batch);

  Rows& rows_;
  const bool has_clock_;
  std::mutex mutex_;  // guards batches_, except for the values of a batch in kPulling
  std::condition_variable changed_;
  std::deque<Batch> batches_;
  std::optional<std::jthread> thread_;  // from the first batch on; last, so it is joined first
};

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
  batches_.pop_front();  // the thread may be pulling another element, which keeps its address
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

namespace {

using torch::autograd::variable_list;

std::vector<Id> ids_in(const at::Tensor& ids, const char* operation, const std::string& table) {
  check(ids.defined() && ids.scalar_type() == at::kLong && ids.is_cpu(),
        "{}: table '{}': ids are int64 on the CPU, not {}", operation, table,
        ids.defined() ? ids.toString() + " on " + ids.device().str() : "undefined");
  const at::Tensor flat = ids.contiguous();
  const auto* const first = flat.data_ptr<std::int64_t>();
  return {first, first + flat.numel()};
}

// A node of the graph whose backward pass pushes the gradients of a forward pass.
class RowsBackward final : public torch::autograd::Node {
 public:
  RowsBackward(std::shared_ptr<Rows> rows, std::shared_ptr<RowPrefetcher> prefetcher,
               std::vector<Id> ids, double scale)
      : RowsBackward(std::move(rows), std::move(prefetcher), std::move(ids), scale,
                     at::empty({0}).requires_grad_()) {}

  std::string name() const override { return "RowsBackward"; }
  void will_release_variables() override { retains_ = false; }

 private:
  RowsBackward(std::shared_ptr<Rows> rows, std::shared_ptr<RowPrefetcher> prefetcher,
               std::vector<Id> ids, double scale, at::Tensor anchor)
      : Node(torch::autograd::edge_list{torch::autograd::impl::gradient_edge(anchor)}),
        anchor_(std::move(anchor)),
        rows_(std::move(rows)),
        prefetcher_(std::move(prefetcher)),
        ids_(std::move(ids)),
        scale_(scale) {}

  variable_list apply(variable_list&& gradients) override {
    const std::string& table = rows_->name();
    if (at::GradMode::is_enabled())
      fail(ErrorCode::kUnsupported, "table '{}' has no gradients of gradients", table);
    check(!is_released_,
          "table '{}': a second backward pass through its rows: the first one freed the graph; "
          "call backward() with retain_graph",
          table);
    is_released_ = !retains_;
    if (gradients[0].defined()) {
      at::Tensor all = gradients[0].to(at::kFloat).contiguous();
      if (scale_ != 1) all = all * scale_;
      prefetcher_->note_push(ids_);
      rows_->push(ids_, {all.data_ptr<float>(), static_cast<std::size_t>(all.numel())});
      prefetcher_->note_push(ids_);  // for a pull that began during the push
    }
    return variable_list(num_outputs());  // the gradient of the anchor is undefined
  }

  const at::Tensor anchor_;  // exists so that the node has an input that requires a gradient
  const std::shared_ptr<Rows> rows_;
  const std::shared_ptr<RowPrefetcher> prefetcher_;
  const std::vector<Id> ids_;
  const double scale_;
  std::atomic<bool> retains_{true}, is_released_{false};
};

}  // namespace

RemoteEmbeddingImpl::RemoteEmbeddingImpl(std::shared_ptr<Rows> rows, double gradient_scale)
    : rows_(std::move(rows)),
      gradient_scale_(gradient_scale),
      prefetcher_(std::make_shared<RowPrefetcher>(*rows_)) {}

RemoteEmbeddingImpl::~RemoteEmbeddingImpl() = default;

at::Tensor RemoteEmbeddingImpl::forward(const at::Tensor& ids) {
  std::vector<Id> all = ids_in(ids, "forward", rows_->name());
  const auto width = static_cast<std::int64_t>(rows_->width());
  at::Tensor values;
  if (auto pulled = prefetcher_->take(all)) {
    values = std::move(*pulled);
  } else {
    values = at::empty({static_cast<std::int64_t>(all.size()), width});
    rows_->pull(all, {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())});
  }
  std::vector<std::int64_t> shape = ids.sizes().vec();
  shape.push_back(width);
  values = values.view(shape);
  if (!is_training() || !at::GradMode::is_enabled()) return values;
  torch::autograd::create_gradient_edge(
      values, make_node<RowsBackward>(rows_, prefetcher_, std::move(all), gradient_scale_));
  return values;
}

void RemoteEmbeddingImpl::prefetch(const at::Tensor& ids) {
  prefetcher_->start(ids_in(ids, "prefetch", rows_->name()));
}

void RemoteEmbeddingImpl::tick() {
  rows_->tick();
  prefetcher_->note_tick();
}

}  // namespace paceline::tables
