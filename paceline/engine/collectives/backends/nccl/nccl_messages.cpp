#include "paceline/engine/collectives/backends/nccl/nccl_messages.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/backends/paceline/message_queues.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/core/timing.h"

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;

// The intervals between polls of NCCL: kQuickPoll if a message has advanced within the last
// kQuickFor, otherwise kSlowPoll.
constexpr std::chrono::microseconds kQuickPoll{50};
constexpr std::chrono::microseconds kSlowPoll{500};
constexpr std::chrono::milliseconds kQuickFor{5};
// How often the thread looks for the group's failure and for deadlines.
constexpr std::chrono::milliseconds kGroupCheckInterval{2};
// How long a message may be unfinished after its other rank has left. A rank leaves only after its
// own end of every message has completed.
constexpr std::chrono::seconds kMaxWaitAfterLeaving{1};

// The order of a message that was started without a DeviceOrder: after the default stream's work.
class DefaultStreamOrder : public DeviceOrder {
 public:
  explicit DefaultStreamOrder(DeviceEvent ready) : ready_(std::move(ready)) {}
  void* ready() const override { return ready_.get(); }
  void wait_for(void* /*event*/) const override {}  // the thread has waited for the device

 private:
  const DeviceEvent ready_;
};

}  // namespace

// The payload of the engine's message that announces a GPU message. Both ranks run the same build
// on hosts of the same byte order.
struct NcclAnnouncement {
  std::uint64_t number = 0;  // the message's number in its direction, from 1; 0: no elements
  nccl::Id id;               // the id of the direction's communicator
};

// One end of a message.
struct NcclMessage {
  Op op = Op::kSend;
  PointToPointCall call;  // without keep_alive, which the Work holds
  Deadline deadline = Deadline::never();
  std::shared_ptr<const DeviceOrder> order;
  WorkPtr work;
  NcclAnnouncement announcement;
  int peer = 0;  // the other rank, once it is known
  AwakeClock::time_point begin = AwakeClock::now();

  bool sends() const { return op == Op::kSend; }
  bool ends_on_host() const { return call.order == nullptr || call.waits_for_device; }
};
using NcclMessagePtr = std::shared_ptr<NcclMessage>;

// One direction between two ranks: the messages that this rank sends to a peer, or receives from
// it.
struct NcclChannel {
  nccl::Id id;
  std::uint64_t last = 0;  // the number of the last message that was sent
  std::uint64_t next = 1;  // the number of the message that is queued on the device next
  std::map<std::uint64_t, NcclMessagePtr> waiting;  // [number]
  std::shared_ptr<NcclCommunicator> communicator;
  NcclMessagePtr launched;  // the message that NCCL is queueing
  // The members below are used only by the thread.
  CudaStream stream = nullptr;
  bool is_connected = false;

  bool is_busy() const { return launched != nullptr || !waiting.empty(); }
};

struct NcclMessages::State : std::enable_shared_from_this<State> {
  State(const NcclApi& nccl, const LibraryContext& given, int gpu, DeviceWatch& watching)
      : api(nccl),
        cuda(*nccl.cuda),
        mesh(given.mesh),
        group(given.group),
        announce(given.announce),
        fail_group(given.fail_group),
        device(gpu),
        watch(watching) {}

  const NcclApi& api;
  const CudaApi& cuda;
  Mesh& mesh;
  const std::string group;
  const decltype(LibraryContext::announce) announce;
  const decltype(LibraryContext::fail_group) fail_group;
  const int device;
  DeviceWatch& watch;
  const OwnerProcess owner;
  mutable std::mutex mutex;  // guards the members below, and the channels
  std::condition_variable changed;
  std::map<std::pair<int, bool>, NcclChannel> channels;  // [peer, whether this rank sends]
  std::vector<NcclMessagePtr> on_device;                 // queued on the device, perhaps finished
  std::map<int, AwakeClock::time_point> left;            // [rank]: when it was seen to have left
  std::optional<Error> failure;
  bool ends = false;
  std::jthread thread;
  bool is_gone = false;  // the group was destroyed on the thread, which alone uses this flag

  const std::string& self() const { return mesh.self(); }

  void end(const NcclMessage& message, const Error& error) const {
    message.work->complete(std::make_exception_ptr(
        error.with({.operation = std::string(name_of(message.op)), .group = group})));
  }

  // ---- the caller's thread, and threads that move the engine's messages

  // The engine's message that announces `message`.
  PointToPointCall announcement_of(const NcclMessagePtr& message) const {
    PointToPointCall call = message->call;
    call.data = reinterpret_cast<std::byte*>(&message->announcement);
    call.announcement_bytes = sizeof(NcclAnnouncement);
    call.order = nullptr;
    call.keep_alive = message;
    call.is_blocking = false;
    return call;
  }

  void send(const NcclMessagePtr& message) {
    if (message->call.count > 0) {
      const std::lock_guard lock(mutex);
      NcclChannel& channel = channels[{message->peer, true}];
      if (channel.last == 0) {
        const CudaDeviceGuard guard(cuda, device, self());
        api.require(api.ncclGetUniqueId(&channel.id), self(), "ncclGetUniqueId");
      }
      message->announcement = {.number = ++channel.last, .id = channel.id};
    }
    const WorkPtr announced = announce(Op::kSend, announcement_of(message), message->deadline);
    if (message->call.count > 0) return add(message);
    announced->on_complete([state = shared_from_this(), message](const Error* error) {
      if (error != nullptr) return state->end(*message, *error);
      message->work->complete(nullptr);
    });
  }

  void receive(const NcclMessagePtr& message) {
    const WorkPtr announced = announce(Op::kReceive, announcement_of(message), message->deadline);
    announced->on_complete(
        [state = shared_from_this(), message, work = std::weak_ptr(announced)](const Error* error) {
          if (error != nullptr) return state->end(*message, *error);
          message->peer = work.lock()->source_rank();
          if (message->announcement.number == 0)
            return message->work->complete(nullptr, message->peer);
          state->add(message);
        });
  }

  // Gives the message to the thread, which queues it on the device in its turn.
  void add(const NcclMessagePtr& message) {
    std::optional<Error> refused;
    {
      const std::lock_guard lock(mutex);
      refused = failure;
      if (ends) refused = group_destroyed_error();
      if (!refused) {
        NcclChannel& channel = channels[{message->peer, message->sends()}];
        channel.id = message->announcement.id;
        channel.waiting.emplace(message->announcement.number, message);
        if (!thread.joinable()) {
          thread = start_thread("paceline-gpumsg", [state = shared_from_this()] { state->run(); });
        }
      }
    }
    if (refused) return end(*message, *refused);
    changed.notify_all();
  }

  Error group_destroyed_error() const {
    return Error(
        ErrorCode::kAborted,
        fmt::format("{}: group {} was destroyed with a send or receive under way", self(), group));
  }

  // ---- the thread

  void run() {
    int mode = cuda::kCaptureOfOwnThread;
    cuda.cudaThreadExchangeStreamCaptureMode(&mode);
    cuda.cudaSetDevice(device);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ends || is_busy(); });
      if (!is_busy()) return;
      run_until_idle(lock);
      if (is_gone) return;
    }
  }

  // Works until no message is left, or until the group was destroyed on this thread. Requires that
  // `lock` holds the mutex.
  void run_until_idle(std::unique_lock<std::mutex>& lock) {
    Vigil vigil;
    auto last_move = Clock::now(), last_look = last_move;
    while (is_busy()) {
      lock.unlock();
      vigil.look();
      bool has_moved = false;
      try {
        has_moved = advance_all();
        const auto now = Clock::now();
        if (has_moved) last_move = now;
        if (!is_gone && now - last_look > kGroupCheckInterval) {
          last_look = now;
          mesh.throw_if_failed();
          check_deadlines();
        }
      } catch (const Error& error) {
        fail_all(error);
      }
      if (is_gone) return;
      lock.lock();
      if (has_moved) continue;
      changed.wait_for(lock, Clock::now() - last_move < kQuickFor ? kQuickPoll : kSlowPoll);
    }
  }

  bool is_busy() const {  // requires mutex
    for (const auto& [key, channel] : channels) {
      if (channel.is_busy()) return true;
    }
    return false;
  }

  // Channels are never removed, and only this thread changes the fields that advance() reads
  // without the lock.
  bool advance_all() {
    std::vector<std::pair<std::pair<int, bool>, NcclChannel*>> busy;
    {
      const std::lock_guard lock(mutex);
      for (auto& [key, channel] : channels) {
        if (channel.is_busy()) busy.emplace_back(key, &channel);
      }
    }
    bool has_moved = false;
    for (const auto& [key, channel] : busy) {
      has_moved |= advance(key.second, *channel);
      if (is_gone) break;
    }
    return has_moved;
  }

  // Takes the channel's next step. Returns false if NCCL is not ready, or if there is no message to
  // queue.
  bool advance(bool sends, NcclChannel& channel) {
    if (channel.communicator == nullptr) {
      connect(sends, channel);
      return true;
    }
    if (!channel.communicator->is_ready()) return false;
    if (!channel.is_connected) return channel.is_connected = true;
    if (channel.launched != nullptr) {
      hand_over(channel);
      return true;
    }
    {
      const std::lock_guard lock(mutex);
      const auto next = channel.waiting.find(channel.next);
      if (next == channel.waiting.end()) return false;
      channel.launched = next->second;
      channel.waiting.erase(next);
      ++channel.next;
    }
    launch(channel, *channel.launched);
    return true;
  }

  void connect(bool sends, NcclChannel& channel) {
    cuda.require(cuda.cudaStreamCreateWithFlags(&channel.stream, cuda::kNonBlocking), self(),
                 "cudaStreamCreate");
    std::unique_lock lock(mutex);
    const nccl::Id id = channel.id;
    lock.unlock();
    auto made = std::make_shared<NcclCommunicator>(api, 2, id, sends ? 0 : 1, self());
    lock.lock();
    channel.communicator = std::move(made);
  }

  void launch(NcclChannel& channel, const NcclMessage& message) const {
    auto* const ready = static_cast<CudaEvent>(message.order->ready());
    cuda.require(cuda.cudaStreamWaitEvent(channel.stream, ready, 0), self(), "cudaStreamWaitEvent");
    int status = 0;
    cuda.require(cuda.cudaStreamIsCapturing(channel.stream, &status), self(),
                 "cudaStreamIsCapturing");
    if (status == cuda::kBeingCaptured) {
      fail(ErrorCode::kUnsupported,
           "{}: {} was called while a CUDA graph is captured; only collectives can be captured",
           self(), message.work->description());
    }
    const std::size_t bytes = message.call.count * size_of(message.call.dtype);
    channel.communicator->call(message.sends() ? "ncclSend" : "ncclRecv", [&](NcclHandle handle) {
      return message.sends()
                 ? api.ncclSend(message.call.data, bytes, nccl::kUint8, 1, handle, channel.stream)
                 : api.ncclRecv(message.call.data, bytes, nccl::kUint8, 0, handle, channel.stream);
    });
  }

  // Called once the whole message is queued on the stream: lets the caller continue, and lets the
  // watch complete the message.
  void hand_over(NcclChannel& channel) {
    const DeviceEvent end = event_after(cuda, channel.stream, self());
    NcclMessagePtr message;
    {
      const std::lock_guard lock(mutex);
      message = std::exchange(channel.launched, nullptr);
      std::erase_if(on_device, [](const auto& one) { return one->work->is_completed(); });
      on_device.push_back(message);
    }
    if (!message->ends_on_host()) {
      message->work->queue(end, true, message->sends() ? -1 : message->peer);
    }
    const std::string peer = mesh.describe(message->peer);
    watch.add({.work = message->work,
               .done = end,
               .deadline = message->deadline,
               .what = message->work->description(),
               .name = std::string(name_of(message->op)),
               .source_rank = message->sends() ? -1 : message->peer,
               .if_late = message->sends() ? peer + " has not received it"
                                           : peer + " has announced it, but has not sent it"});
  }

  void check_deadlines() const {
    const std::lock_guard lock(mutex);
    for (const auto& [key, channel] : channels) {
      for (const auto& [number, message] : channel.waiting) {
        if (!put_off(message->deadline).expired()) continue;
        const std::string peer = mesh.describe(message->peer);
        fail(ErrorCode::kTimeout,
             {.operation = std::string(name_of(message->op)),
              .group = group,
              .ranks = {mesh.in_world(message->peer)},
              .deadline = message->deadline.timeout()},
             "{}: {} timed out after {:.1f} s: {}; {}", self(), message->work->description(),
             seconds_since(message->begin),
             message->sends()
                 ? peer + " does not receive it"
                 : fmt::format("this rank has not posted a receive for message {} of {}, which "
                               "backend nccl delivers before message {}: receive messages in the "
                               "order of sending, or start the receives together (irecv)",
                               channel.next, peer, number),
             kAdviceForLate);
      }
    }
  }

  // Throws if a message can never end, because its other rank has left.
  void require_peers(const std::vector<int>& gone) {
    const std::lock_guard lock(mutex);
    for (const int peer : gone) left.try_emplace(peer, AwakeClock::now());
    for (const NcclMessagePtr& message : on_device) {
      const auto found = left.find(message->peer);
      if (found == left.end() || message->work->is_completed()) continue;
      if (AwakeClock::now() - found->second < kMaxWaitAfterLeaving) continue;
      fail(ErrorCode::kPeerLost,
           {.operation = std::string(name_of(message->op)),
            .group = group,
            .ranks = {mesh.in_world(message->peer)},
            .deadline = {}},
           "{}: {} cannot complete: {} has left group {} without {} it", self(),
           message->work->description(), mesh.describe(message->peer), group,
           message->sends() ? "receiving" : "sending");
    }
  }

  void fail_all(const Error& error) {
    const Error cause = fail_group(error);
    std::vector<NcclMessagePtr> ended;
    {
      const std::lock_guard lock(mutex);
      failure = cause;
      ended = take_all(true);
    }
    for (const NcclMessagePtr& message : ended) end(*message, cause);
  }

  // Requires mutex.
  std::vector<NcclMessagePtr> take_all(bool with_launched) {
    std::vector<NcclMessagePtr> taken;
    for (auto& [key, channel] : channels) {
      if (with_launched && channel.launched != nullptr) {
        taken.push_back(std::exchange(channel.launched, nullptr));
      }
      for (auto& [number, message] : channel.waiting) taken.push_back(std::move(message));
      channel.waiting.clear();
    }
    return taken;
  }

  NcclCommunicator::Several communicators() const {
    NcclCommunicator::Several all;
    const std::lock_guard lock(mutex);
    for (const auto& [key, channel] : channels) {
      if (channel.communicator != nullptr) all.push_back(channel.communicator);
    }
    return all;
  }
};

NcclMessages::NcclMessages(const NcclApi& api, const LibraryContext& context, int device,
                           DeviceWatch& watch)
    : state_(std::make_shared<State>(api, context, device, watch)) {}

NcclMessages::~NcclMessages() {
  for (const auto& [key, channel] : state_->channels) {
    if (channel.stream != nullptr) state_->cuda.cudaStreamDestroy(channel.stream);
  }
}

WorkPtr NcclMessages::start(Op op, const PointToPointCall& call, Deadline deadline) {
  State& state = *state_;
  const auto message = std::make_shared<NcclMessage>();
  message->op = op;
  message->call = call;
  message->deadline = deadline;
  message->peer = call.peer;
  message->order = call.order;
  if (message->order == nullptr) {
    const CudaDeviceGuard guard(state.cuda, state.device, state.self());
    message->order =
        std::make_shared<DefaultStreamOrder>(event_after(state.cuda, nullptr, state.self()));
  }
  message->work = std::make_shared<Work>(
      label_of(op == Op::kSend ? "send" : "recv", call, state.mesh), message->order);
  message->work->hold(std::move(message->call.keep_alive));
  message->call.keep_alive = nullptr;
  WorkPtr work = message->work;
  if (op == Op::kSend) {
    state.send(message);
  } else {
    state.receive(message);
  }
  return work;
}

void NcclMessages::require_peers(const std::vector<int>& left) { state_->require_peers(left); }

NcclCommunicator::Several NcclMessages::communicators() const { return state_->communicators(); }

NcclCommunicator::Several NcclMessages::stop() {
  State& state = *state_;
  std::vector<NcclMessagePtr> ended;
  {
    const std::lock_guard lock(state.mutex);
    state.ends = true;
    ended = state.take_all(false);
  }
  state.changed.notify_all();
  for (const NcclMessagePtr& message : ended) state.end(*message, state.group_destroyed_error());
  if (!state.owner.is_this()) {  // a child of fork() has no such thread
    if (state.thread.joinable()) state.thread.detach();
    return {};
  }
  if (state.thread.joinable()) {
    if (state.thread.get_id() == std::this_thread::get_id()) {
      state.is_gone = true;
      state.thread.detach();
    } else {
      state.thread.join();
    }
  }
  NcclCommunicator::Several connected, others;
  for (const auto& [key, channel] : state.channels) {
    if (channel.communicator == nullptr) continue;
    (channel.is_connected ? connected : others).push_back(channel.communicator);
  }
  NcclCommunicator::abort(others);
  return connected;
}

}  // namespace paceline
