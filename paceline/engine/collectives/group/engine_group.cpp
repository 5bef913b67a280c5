#include "paceline/engine/collectives/group/engine_group.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/ranges.h>
#include <xxhash.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/backends/connect_backend.h"
#include "paceline/engine/collectives/backends/paceline/symmetric_regions.h"
#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/rendezvous/hosted_store.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

namespace {

int index_of(int value, const std::vector<int>& values) {
  const auto found = std::find(values.begin(), values.end(), value);
  return found == values.end() ? -1 : static_cast<int>(found - values.begin());
}

constexpr std::size_t kMaxHostBytes = 255;

// Carries out a collective on copies of a device's memory. The other ranks wait for this one, so an
// error in the copying aborts the group. `queues`: the caller may continue once the copying of the
// results to the device is queued.
void between_copies(Backend& backend, const HostCopies& copies, bool queues,
                    const CallOrder::Operation& operation, const WaitOptions& wait) {
  const auto copying = [&](const auto& copy) {
    try {
      copy();
    } catch (const Error& error) {
      backend.abort(error);
      throw;
    }
  };
  copying([&] { copies.fetch(wait.deadline); });
  operation(wait);
  copying([&] {
    const DeviceEvent done = copies.deliver();
    if (queues) wait.work->queue(done);
    copies.settle(wait.deadline);
  });
}

// Runs an operation. No other rank knows of an exception that is not an Error, such as a lack of
// memory between two collectives, so such an exception aborts the group.
void run_or_abort(Backend& backend, const std::string& self, const CallOrder::Operation& operation,
                  const WaitOptions& wait) {
  try {
    operation(wait);
  } catch (const Error&) {
    throw;
  } catch (...) {
    backend.abort({ErrorCode::kSystem,
                   fmt::format("{}: a call failed: {}", self, describe_current_exception())});
    throw;
  }
}

}  // namespace

void require_possible(const GroupOptions& options) {
  check(!options.timeout || options.timeout->count() > 0,
        "GroupOptions::timeout is {} ms: give at least 1 ms, or none",
        options.timeout.value_or(std::chrono::milliseconds()).count());
  check(options.link.host.size() <= kMaxHostBytes, "LinkOptions::host has {} bytes, more than {}",
        options.link.host.size(), kMaxHostBytes);
}

EngineGroup::EngineGroup(Rendezvous rendezvous, std::string name, std::vector<int> world_ranks,
                         const GroupOptions& options, const Parent& parent)
    : rendezvous_(std::move(rendezvous)),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      options_(options),
      rank_(index_of(rendezvous_.environment.rank, world_ranks_)),
      self_(rank_name(is_member() ? rank_ : rendezvous_.environment.rank,
                      rendezvous_.environment.rank)),
      name_hash_(XXH3_64bits(name_.data(), name_.size())),
      flight_(is_member() ? options_.recorder : nullptr, name_, name_hash_, rank_, world_size(),
              rendezvous_.environment.restart_count),
      symmetric_(parent.symmetric ? parent.symmetric : std::make_shared<SymmetricRegistry>()),
      failures_(parent.failures ? parent.failures : std::make_shared<FailureDomain>()),
      backend_(flight_.form([&] {
        const StoreUse use(rendezvous_.hosted, name_, world_ranks_);
        if (!is_member()) return std::unique_ptr<Backend>();
        return connect_backend(rendezvous_, {.group = name_,
                                             .group_hash = name_hash_,
                                             .rank = rank_,
                                             .world_ranks = world_ranks_,
                                             .choice = options_.backend,
                                             .link = options_.link,
                                             .planning = options_.planning,
                                             .timeout = std::min<std::chrono::milliseconds>(
                                                 timeout(), Store::kDefaultTimeout),
                                             .look_after_parent = parent.look_after,
                                             .symmetric = symmetric_,
                                             .failures = failures_});
      })),
      last_words_([this](const std::string& text) {
        if (!is_member() || !owner_.is_this()) return;
        const bool names_rank = text.starts_with("rank ");
        backend_->abort(ending(ErrorCode::kPeerLost, names_rank ? text : self_ + ": " + text));
      }),
      order_([this](const Operation& operation, const WaitOptions& wait) {
        run_or_abort(*backend_, self_, operation, wait);
      }) {}

EngineGroup::~EngineGroup() {
  // An operation that has been queued on a device completely is not aborted, because the program
  // may already have waited for it.
  if (!owner_.is_this() || !is_member()) return;
  const bool has_refused = !refusal_.text.empty() && refusal_.after == sequence_;
  if (!order_.is_busy()) {
    if (has_refused) backend_->foretell("it refused a call: " + refusal_.text);
    return;
  }
  if (!backend_->failed()) warn_of_pending_operations();
  abort(has_refused ? refusal_.text : "the group was destroyed with operations under way");
}

void EngineGroup::note_refusal(const Error& error) const {
  if (!is_member() || backend_->failed()) return;
  const std::lock_guard lock(refusal_mutex_);
  refusal_ = {error.what(), sequence_};
}

std::string EngineGroup::name_of_member(std::size_t rank) const {
  return rank_name(static_cast<int>(rank), world_ranks_[rank]);
}

// Warns, because the program may never observe the operations' errors.
void EngineGroup::warn_of_pending_operations() const {
  constexpr std::size_t kMaxNames = 4;
  auto names = order_.names_under_way();
  const std::size_t count = names.size();
  if (count == 0) return;
  names.resize(std::min(count, kMaxNames));
  for (std::string& name : names) name.erase(0, self_.size() + 2);  // "rank 1: "
  log::warning(
      fmt::format("{}: group {} is destroyed with {} under way: {}{}; their results are "
                  "discarded: wait() for each before destroying the group",
                  self_, name_, counted(count, "operation"), fmt::join(names, ", "),
                  count > names.size() ? ", ..." : ""));
}

bool EngineGroup::supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const {
  return backend_for("supports").supports(op, dtype, reduce_op, device);
}

// ---- collectives

namespace {

std::uint32_t own_divisor(const ProcessGroup& group, const Call& call) {
  const auto op = name_of(call.op);
  check(reduces(call.op) && call.reduce_op == ReduceOp::kMean,
        "{}: {}: a divisor of {} without a mean: only ReduceOp::kMean has one", group.self(), op,
        *call.divisor);
  check(*call.divisor >= 1 && *call.divisor <= INT32_MAX,
        "{}: {}: a mean divided by {}; give a number from 1 to 2^31 - 1", group.self(), op,
        *call.divisor);
  if (call.output.device != Device::kCpu || call.input.device != Device::kCpu) {
    fail(ErrorCode::kUnsupported,
         "{}: {}: a mean with its own divisor is for the CPU; on a device take the sum, and divide",
         group.self(), op);
  }
  return *call.divisor == group.world_ranks().size() ? 0 : *call.divisor;
}

// Refuses overlapping buffers, because peers read an input while this rank writes its output.
void require_apart_or_in_place(const ProcessGroup& group, const Collective& call, ConstBuffer input,
                               Buffer output) {
  const std::byte* const in = input.data;
  const std::byte* const out = output.data;
  if (in == out && call.op == Op::kAllReduce) return;  // the most frequent case
  if (in + input.bytes() <= out || out + output.bytes() <= in) return;
  const auto op = name_of(call.op);
  const auto offset = in_place_offset(call, group.rank());
  check(offset.has_value(), "{}: {}: input and output overlap; give it separate buffers",
        group.self(), op);
  const std::size_t bytes = *offset * size_of(call.dtype);
  const bool in_place = input.bytes() > output.bytes() ? in + bytes == out : out + bytes == in;
  check(in_place,
        "{}: {}: input and output overlap; the shorter one must begin {} elements into the "
        "longer one, or they must not overlap",
        group.self(), op, *offset);
}

}  // namespace

Collective EngineGroup::make(const Call& call) const {
  const OpTraits& op = traits_of(call.op);
  require_member(op.name);
  if (op.input == Extent::kNothing && call.op != Op::kBarrier) {
    fail(ErrorCode::kInvalid,
         "{}: {} is not an operation of run() and start(): call the group's function of that name",
         self_, op.name);
  }
  // Type, device and count are taken from the buffer that every rank has.
  const bool by_input = op.has(kOnlyRootGets) || op.output == Extent::kOwnCount;
  Collective made;
  made.op = call.op;
  made.reduce_op = call.reduce_op;
  made.dtype = by_input ? call.input.dtype : call.output.dtype;
  made.device = by_input ? call.input.device : call.output.device;
  made.root = call.root;
  made.shape = call.shape;
  made.shapes = call.shapes;
  if (call.divisor) made.divisor = own_divisor(*this, call);
  if (has_counts(call.op)) {
    check(call.counts.size() == world_ranks_.size(),
          "{}: {}: a list of {} counts in a group of {} ranks", self_, op.name, call.counts.size(),
          world_size());
    made.counts = call.counts;
    made.count = saturated_sum(call.counts);
    made.layout = layout_of(call.counts);
  } else if (op.input == Extent::kCount && !op.has(kOnlyRootGives)) {
    made.count = call.input.count;
  } else if (op.output == Extent::kCount) {
    made.count = call.output.count;
  } else {  // blocks to blocks
    made.count = call.input.count / world_ranks_.size();
  }
  require_collective(made, call.input, call.output);
  made.input = input_count(made, rank_, world_size()) > 0 ? call.input.data : nullptr;
  made.output = output_count(made, rank_, world_size()) > 0 ? call.output.data : nullptr;
  return made;
}

void EngineGroup::require_collective(const Collective& call, ConstBuffer input,
                                     Buffer output) const {
  const auto op = name_of(call.op);
  require_addressable(op, call.dtype, call.count, world_size());
  check(!has_root(call.op) || (call.root >= 0 && call.root < world_size()),
        "{}: {}: root {} is not a rank of group {}, which has {} ranks", self_, op, call.root,
        name_, world_size());
  const std::size_t needed_in = input_count(call, rank_, world_size());
  const std::size_t needed_out = output_count(call, rank_, world_size());
  check(input.count == needed_in || (needed_in == 0 && call.op != Op::kAllToAll),
        "{}: {} of {} elements in a group of {} needs an input of {} elements, not {}", self_, op,
        call.count, world_size(), needed_in, input.count);
  check(output.count == needed_out || needed_out == 0,
        "{}: {} of {} elements in a group of {} needs an output of {} elements, not {}", self_, op,
        call.count, world_size(), needed_out, output.count);
  const bool has_both = needed_in > 0 && needed_out > 0;
  if (has_both && input.dtype != output.dtype) [[unlikely]] {
    fail(ErrorCode::kInvalid, "{}: {}: input is {}, output is {}", self_, op, name_of(input.dtype),
         name_of(output.dtype));
  }
  check(!has_both || input.device == output.device,
        "{}: {}: input and output are on different devices", self_, op);
  check((needed_in == 0 || input.data != nullptr) && (needed_out == 0 || output.data != nullptr),
        "{}: {}: a buffer is null", self_, op);
  require_supported(call);
  if (has_both) require_apart_or_in_place(*this, call, input, output);
}

// Refuses `blocks` times `count` elements if no memory can hold them, so that no product or sum of
// a call's counts overflows.
void EngineGroup::require_addressable(std::string_view what, Dtype dtype, std::size_t count,
                                      int blocks) const {
  std::size_t bytes = 0;
  const bool overflows =
      __builtin_mul_overflow(count, size_of(dtype) * static_cast<std::size_t>(blocks), &bytes);
  if (!overflows && bytes <= static_cast<std::size_t>(PTRDIFF_MAX)) [[likely]]
    return;
  fail(ErrorCode::kInvalid,
       "{}: {} of {} x {} in group {} of {}: that is more than memory can hold", self_, what,
       name_of(dtype), count == SIZE_MAX ? "2^64 and more" : std::to_string(count), name_,
       world_size());
}

void EngineGroup::require_supported(const Collective& call) const {
  if (call.op == Op::kBarrier ||
      backend_->supports(call.op, call.dtype, call.reduce_op, call.device)) {
    return;
  }
  const auto op = name_of(call.op);
  if (reduces(call.op) && !is_defined(call.reduce_op, call.dtype)) {
    fail(ErrorCode::kUnsupported, "{}: {}: {} is not defined for {}", self_, op,
         name_of(call.reduce_op), name_of(call.dtype));
  }
  if (call.device == Device::kCuda && parse_backend_choice(options_.backend).cuda.empty()) {
    fail(ErrorCode::kUnsupported,
         "{}: {}: group {} has no backend for CUDA memory; form it with --backend "
         "cpu:paceline,cuda:nccl, or copy to the host",
         self_, op, name_);
  }
  fail(ErrorCode::kUnsupported, "{}: {} of {}{}{} is not supported by backend {}; {}", self_, op,
       name_of(call.dtype), reduces(call.op) ? ", " : "",
       reduces(call.op) ? name_of(call.reduce_op) : "", backend(),
       call.device == Device::kCpu ? "choose --backend paceline, which supports it"
                                   : "copy to the host, where backend paceline supports it");
}

// ---- order

void EngineGroup::require_time(const CallOptions& options) const {
  if (!options.timeout || options.timeout->count() > 0) [[likely]]
    return;
  fail(
      ErrorCode::kInvalid,
      "{}: CollectiveOptions::timeout is {} ms, in which no operation can end; give at least 1 ms, "
      "or none for the {} ms of group {}",
      self_, options.timeout->count(), timeout().count(), name_);
}

Deadline EngineGroup::deadline_of(const CallOptions& options) const {
  return Deadline::after(options.timeout.value_or(timeout()));
}

Error EngineGroup::in_context(const Error& error, Op op, Deadline deadline) const {
  ErrorContext context{
      .operation = std::string(name_of(op)), .group = name_, .ranks = {}, .deadline = {}};
  if (error.code() == ErrorCode::kTimeout) context.deadline = deadline.timeout();
  return error.with(std::move(context));
}

// Carries out a collective and then `then`, which is a part of the operation. Requires: no other
// operation of the group is under way.
void EngineGroup::execute(const Collective& call, FlightTicket ticket, const WaitOptions& wait,
                          const Then& then) {
  const auto generation = static_cast<std::uint32_t>(rendezvous_.environment.restart_count);
  const std::uint32_t number = sequence_.load(std::memory_order_relaxed) + 1;
  sequence_.store(number, std::memory_order_relaxed);
  const auto fingerprint = make_fingerprint(call, number, generation, name_hash_);
  WaitOptions recorded = wait;
  recorded.recorder = flight_.recorder().get();
  if (wait.work != nullptr) wait.work->begin(self_, name_, fingerprint, flight_.recorder());
  flight_.run(call, ticket, fingerprint.sequence, [&] {
    try {
      backend_->run(call, fingerprint, recorded);
      if (then) then(fingerprint, recorded);
    } catch (const Error& error) {
      const Error known = in_context(error, call.part_of.value_or(call.op), wait.deadline);
      if (error.code() == ErrorCode::kInvalid && call.shapes != nullptr) {
        throw known.reworded(
            fmt::format("{}; this rank gave {}", error.what(), call.shapes->describe()));
      }
      const bool names_operation = error.code() != ErrorCode::kPeerLost &&
                                   error.code() != ErrorCode::kAborted &&
                                   error.code() != ErrorCode::kSystem;
      if (names_operation) throw known;
      throw reported_by(self_, "a collective",
                        known.reworded(fmt::format("{}; this rank was in {} of group {}",
                                                   error.what(), fingerprint.describe(), name_)));
    }
  });
}

// A child of fork() has neither this rank's threads nor a rank of its own; other ranks would take
// its messages for those of its parent.
void EngineGroup::require_own_process(std::string_view what) const {
  check(owner_.is_this(),
        "{}: {} in group {}: the group belongs to process {}, and this is a child that it made "
        "by fork(); fork before the group is made, or start another program (exec)",
        self_, what, name_, owner_.pid());
}

// Every call runs this check, so it composes no text for valid calls.
void EngineGroup::require_member(std::string_view what) const {
  if (is_member()) return;
  fail(ErrorCode::kInvalid,
       "{}: {}: this rank is not a member of group {}, whose members are {}; only they "
       "may make this call (is_member())",
       self_, what, name_,
       world_ranks_.empty() ? std::string("unknown here, because this rank gave split() a "
                                          "negative color")
                            : fmt::format("ranks {} of the world", fmt::join(world_ranks_, ", ")));
}

// A plain call that can run in this thread costs no allocation.
void EngineGroup::run(const Call& call, const CallOptions& options) try {
  if (traits_of(call.op).has(kIsMessage)) {
    post(call, false, options)->wait();
  } else if (options.order) {  // the call may return before the device has finished
    start(call, options)->wait();
  } else if (call.lists || has_counts(call.op)) {
    run_in_order(prepare(call, options), options);
  } else {
    const Collective made = make(call);
    run_in_order([&](const WaitOptions& wait) { execute(made, {}, wait); }, options);
  }
} catch (const Error& error) {
  note_refusal(error);
  throw in_context(error, call.op, deadline_of(options));
}

WorkPtr EngineGroup::start(const Call& call, const CallOptions& options) try {
  if (traits_of(call.op).has(kIsMessage)) return post(call, true, options);
  require_own_process("an asynchronous call");
  Operation operation = prepare(call, options);
  if (auto copies = std::dynamic_pointer_cast<const HostCopies>(options.order)) {
    operation = [this, copies, inner = std::move(operation)](const WaitOptions& wait) {
      between_copies(*backend_, *copies, !options_.blocking_wait, inner, wait);
    };
  }
  return enqueue(
      std::move(operation),
      fmt::format("{}{} in group {}", name_of(call.op), call.lists ? "_coalesced" : "", name_),
      options);
} catch (const Error& error) {
  note_refusal(error);
  throw in_context(error, call.op, deadline_of(options));
}

// Checks the call, and returns the operation that carries it out later.
EngineGroup::Operation EngineGroup::prepare(const Call& call, const CallOptions& options) {
  if (call.lists) return prepare_coalesced(call, options);
  if (call.op == Op::kAllToAllV) return prepare_all_to_all_v(call, options);
  if (has_counts(call.op)) return prepare_with_counts(call, options);
  const Collective made = make(call);
  require_time(options);
  return [this, made, ticket = flight_.enter(made), order = options.order](
             const WaitOptions& wait) { execute(with_order(made, order, wait), ticket, wait); };
}

// Adds the device's order to the call. Requires: `order` outlives the result.
Collective EngineGroup::with_order(Collective call, const std::shared_ptr<const DeviceOrder>& order,
                                   const WaitOptions& wait) const {
  call.order = order.get();
  call.work = order && !options_.blocking_wait ? wait.work : nullptr;
  return call;
}

// Runs the operation in the calling thread if no other is under way; otherwise adds it to the
// queue.
void EngineGroup::run_in_order(Operation operation, const CallOptions& options) {
  require_own_process("a call");
  require_time(options);
  if (const CallOrder::Turn turn(order_); turn) {
    run_or_abort(*backend_, self_, operation, {deadline_of(options), true});
    return;
  }
  check(visitor_.load() != std::this_thread::get_id(),
        "{}: a blocking call in the body of a visit in group {}: it would wait for that visit; "
        "call the group before or after it",
        self_, name_);
  enqueue(std::move(operation), "an operation in group " + name_, options)->wait();
}

WorkPtr EngineGroup::enqueue(Operation operation, const std::string& description,
                             const CallOptions& options) {
  require_own_process("an asynchronous call");
  require_time(options);
  auto work =
      std::make_shared<Work>([text = self_ + ": " + description] { return text; }, options.order);
  order_.add({std::move(operation), deadline_of(options), work, options.keep_alive});
  return work;
}

// ---- memory

SymmetricBuffer EngineGroup::allocate_symmetric(std::size_t bytes,
                                                const CollectiveOptions& options) {
  return allocate(bytes, Pages::kPresent, {.timeout = options.timeout});
}

SymmetricBuffer EngineGroup::reserve_symmetric(std::size_t bytes,
                                               const CollectiveOptions& options) {
  return allocate(bytes, Pages::kOnTouch, {.timeout = options.timeout});
}

bool EngineGroup::is_symmetric(ConstBuffer buffer) {
  require_member("is_symmetric");
  bool answer = false;
  run_in_order([&](const WaitOptions&) { answer = backend_->is_symmetric(buffer); }, {});
  return answer;
}

SymmetricBuffer EngineGroup::allocate(std::size_t bytes, Pages pages, const CallOptions& options) {
  require_member("allocate_symmetric");
  check(bytes > 0, "{}: allocate_symmetric: 0 bytes", self_);
  Collective call;
  call.op = Op::kAllocate;
  call.count = bytes;
  SymmetricBuffer buffer;
  run_in_order(
      [&](const WaitOptions& wait) {
        // This collective moves no elements, but detects a rank that makes a different call or asks
        // for a different size.
        execute(call, {}, wait, [&](const Fingerprint& fingerprint, const WaitOptions& recorded) {
          buffer = backend_->allocate_symmetric(bytes, pages, fingerprint, recorded);
        });
      },
      options);
  return buffer;
}

// ---- the end

// The error with which the group ends because of this rank.
Error EngineGroup::ending(ErrorCode code, const std::string& text) const {
  return {code, text, {.group = name_, .ranks = {world_ranks_[static_cast<std::size_t>(rank_)]}}};
}

void EngineGroup::abort(const std::string& reason) {
  require_member("abort");
  require_own_process("abort");
  const bool names_rank = reason.starts_with(self_ + ": ");
  const Error cause = ending(ErrorCode::kAborted, names_rank ? reason : self_ + ": " + reason);
  flight_.note_failure(cause.what());
  backend_->abort(cause);
}

// The group's messages between two ranks, which are outside the common order of collectives.

PointToPointCall EngineGroup::make_message(const Call& call, const CallOptions& options) const {
  const auto what = name_of(call.op);
  require_member(what);
  check(!call.lists, "{}: {} does not take several buffers; call it for each", self_, what);
  const bool is_send = call.op == Op::kSend;
  const ConstBuffer buffer = is_send ? call.input : ConstBuffer(call.output);
  check(!is_send || call.peer != kAnySource, "{}: send: kAnySource is for receives only", self_);
  check(world_size() > 1, "{}: {}: group {} has no other rank", self_, what, name_);
  check(
      (call.peer >= 0 && call.peer < world_size() && call.peer != rank_) || call.peer == kAnySource,
      "{}: {}: peer {} is not another rank of group {}, which has {} ranks", self_, what, call.peer,
      name_, world_size());
  if (call.allocator) {
    check(!is_send && buffer.data == nullptr,
          "{}: {}: a MessageAllocator is for a receive without a buffer", self_, what);
    return {.peer = call.peer,
            .tag = call.tag,
            .allocator = call.allocator,
            .keep_alive = options.keep_alive};
  }
  require_addressable(what, buffer.dtype, buffer.count, 1);
  check(buffer.data != nullptr || buffer.count == 0, "{}: {}: the buffer is null", self_, what);
  const bool is_on_host = buffer.device == Device::kCpu;
  if (!backend_->takes_messages(buffer.device)) {
    fail(ErrorCode::kUnsupported,
         "{}: {}: group {} has no backend for messages in CUDA memory; form it with --backend "
         "cpu:paceline,cuda:nccl, or copy to the host",
         self_, what, name_);
  }
  PointToPointCall message{.peer = call.peer,
                           .tag = call.tag,
                           .dtype = buffer.dtype,
                           .count = buffer.count,
                           .data = const_cast<std::byte*>(buffer.data),
                           .device = buffer.device,
                           .order = is_on_host ? nullptr : options.order,
                           .shape = call.shape,
                           .keep_alive = options.keep_alive,
                           .waits_for_device = options_.blocking_wait};
  if (call.sizes) {
    if (!is_on_host) {
      fail(ErrorCode::kUnsupported,
           "{}: {}: a tensor in CUDA memory cannot travel with its shape; send its shape in host "
           "memory first, or copy it to the host",
           self_, what);
    }
    check(call.sizes->size() <= kMaxMessageSizes,
          "{}: {}: a tensor of {} dimensions; {} is the maximum for one that travels with its "
          "shape",
          self_, what, call.sizes->size(), kMaxMessageSizes);
    message.sizes.emplace(call.sizes->begin(), call.sizes->end());
  }
  return message;
}

WorkPtr EngineGroup::post(const Call& call, bool asynchronous, const CallOptions& options) {
  PointToPointCall message = make_message(call, options);
  require_own_process(name_of(call.op));
  require_time(options);
  message.is_blocking = !asynchronous;
  return flight_.message(call.op, message, asynchronous, [&] {
    const Deadline deadline = deadline_of(options);
    try {
      return call.op == Op::kSend ? backend_->send(message, deadline)
                                  : backend_->receive(message, deadline);
    } catch (const Error& error) {
      throw reported_by(self_, fmt::format("{} in group {}", name_of(call.op), name_),
                        in_context(error, call.op, deadline));
    }
  });
}

int EngineGroup::recv(const Call& call, const CallOptions& options) {
  check(call.op == Op::kReceive, "{}: recv takes a call of recv, not of {}", self_,
        name_of(call.op));
  const auto work = post(call, false, options);
  work->wait();
  return work->source_rank();
}

}  // namespace paceline
