#include "paceline/engine/collectives/backends/gloo/gloo_context.h"

#include <atomic>
#include <mutex>
#include <set>

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline {

void GlooStore::set(const std::string& key, const std::vector<char>& data) {
  context_.store->set(key, std::string(data.begin(), data.end()));
}

std::vector<char> GlooStore::get(const std::string& key) {
  wait({key});
  const std::string value = context_.store->get(key);
  return {value.begin(), value.end()};
}

void GlooStore::wait(const std::vector<std::string>& keys) {
  wait_for_keys(*context_.store, keys, context_.mesh, context_.deadline, "Gloo");
}

// Gloo's own limit would be 30 s; the group's deadline applies instead.
void GlooStore::wait(const std::vector<std::string>& keys,
                     const std::chrono::milliseconds& /*timeout*/) {
  wait(keys);
}

namespace {

// How many slices the thread stays awake after a run, so that the next run need not wake it.
constexpr int kIdleSlices = 50;

}  // namespace

RunWatch::RunWatch(Mesh& mesh, std::function<void()> end_waits)
    : mesh_(mesh),
      end_waits_(std::move(end_waits)),
      thread_(start_thread("paceline-watch", [this](std::stop_token stop) { watch(stop); })) {}

void RunWatch::begin() {
  running_.store(true);
  if (!parked_.load()) return;
  const std::lock_guard lock(mutex_);
  woken_.notify_all();
}

void RunWatch::watch(const std::stop_token& stop) {
  int idle = 0;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (idle > kIdleSlices) {
      parked_.store(true);
      woken_.wait(lock, stop, [&] { return running_.load(); });
      parked_.store(false);
      idle = 0;
    }
    woken_.wait_for(lock, stop, kSlice, [] { return false; });
    idle = running_.load() ? 0 : idle + 1;
    if (idle > 0) continue;
    lock.unlock();
    if (group_failed()) end_waits_();
    lock.lock();
  }
}

bool RunWatch::group_failed() {
  try {
    mesh_.throw_if_failed();
    return false;
  } catch (const Error&) {  // LibraryBackend::run() throws the error
    return true;
  }
}

namespace {

using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;

// The slot of a receive that no rank answers; the slots of collectives begin with a different byte.
constexpr std::uint64_t kAbortSlot = ~std::uint64_t(0);

// The existing buffers, and whether their waits have been ended.
class Waits {
 public:
  void add(UnboundBuffer* buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.insert(buffer);
  }
  void remove(UnboundBuffer* buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.erase(buffer);
  }
  void end() {
    ended_.store(true);
    const std::lock_guard lock(mutex_);
    for (UnboundBuffer* buffer : buffers_) {
      buffer->abortWaitSend();
      buffer->abortWaitRecv();
    }
  }
  bool have_ended() const { return ended_.load(); }

 private:
  std::atomic<bool> ended_{false};
  std::mutex mutex_;  // guards buffers_
  std::set<UnboundBuffer*> buffers_;
};

class ListedBuffer : public UnboundBuffer {
 public:
  ListedBuffer(std::unique_ptr<UnboundBuffer> buffer, Waits& waits)
      : UnboundBuffer(buffer->ptr, buffer->size), buffer_(std::move(buffer)), waits_(waits) {
    waits_.add(buffer_.get());
  }
  ~ListedBuffer() override { waits_.remove(buffer_.get()); }
  ListedBuffer(const ListedBuffer&) = delete;
  ListedBuffer& operator=(const ListedBuffer&) = delete;

  bool waitRecv(int* rank, milliseconds timeout) override {
    return require_complete(!waits_.have_ended() && buffer_->waitRecv(rank, timeout));
  }
  bool waitSend(int* rank, milliseconds timeout) override {
    return require_complete(!waits_.have_ended() && buffer_->waitSend(rank, timeout));
  }
  void abortWaitRecv() override { buffer_->abortWaitRecv(); }
  void abortWaitSend() override { buffer_->abortWaitSend(); }
  void send(int rank, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    buffer_->send(rank, slot, offset, bytes);
  }
  void recv(int rank, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    buffer_->recv(rank, slot, offset, bytes);
  }
  void recv(std::vector<int> ranks, std::uint64_t slot, std::size_t offset,
            std::size_t bytes) override {
    buffer_->recv(std::move(ranks), slot, offset, bytes);
  }

 private:
  // Gloo's algorithms ignore the result of a wait, so this function throws instead.
  static bool require_complete(bool is_complete) {
    if (!is_complete) throw gloo::IoException("a wait was ended because the group has failed");
    return true;
  }

  std::unique_ptr<UnboundBuffer> buffer_;
  Waits& waits_;
};

class ListingContext : public gloo::transport::Context {
 public:
  explicit ListingContext(std::shared_ptr<gloo::transport::Context> context)
      : gloo::transport::Context(context->rank, context->size), context_(std::move(context)) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int rank) override {
    return context_->getPair(rank);
  }
  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override {
    return context_->createPair(rank);
  }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* data, std::size_t bytes) override {
    return std::make_unique<ListedBuffer>(context_->createUnboundBuffer(data, bytes), waits_);
  }

  void end_waits() {
    waits_.end();
    break_connections();
  }

 private:
  // Breaks all connections of the context: in Gloo, a wait that times out breaks its connection.
  // Otherwise half-written buffers would keep Gloo's thread busy.
  void break_connections() {
    std::byte nothing{};
    const auto buffer = context_->createUnboundBuffer(&nothing, 1);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      try {
        buffer->recv(peer, kAbortSlot);
        buffer->waitRecv(milliseconds(1));
      } catch (const std::exception&) {  // the intended time-out, or an already broken connection
      }
    }
  }

  const std::shared_ptr<gloo::transport::Context> context_;
  Waits waits_;
};

}  // namespace

void AbortableContext::connect(gloo::rendezvous::Store& store, const std::string& address) {
  auto device = gloo::transport::tcp::CreateDevice(address.c_str());
  connectFullMesh(store, device);
  transportContext_ = std::make_shared<ListingContext>(transportContext_);
}

void AbortableContext::end_waits() { static_cast<ListingContext&>(*transportContext_).end_waits(); }

}  // namespace paceline
