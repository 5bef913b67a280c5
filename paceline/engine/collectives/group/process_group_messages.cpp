// The group's messages between two ranks, which follow no common order.

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/check.h"

namespace paceline {

PointToPointCall ProcessGroup::make_message(const Call& call, const CallOptions& options) const {
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
  if (call.place) {
    check(!is_send && buffer.data == nullptr, "{}: {}: a place is for a receive without a buffer",
          self_, what);
    return {
        .peer = call.peer, .tag = call.tag, .place = call.place, .keep_alive = options.keep_alive};
  }
  require_addressable(what, buffer.dtype, buffer.count, 1);
  check(buffer.data != nullptr || buffer.count == 0, "{}: {}: the buffer is null", self_, what);
  if (buffer.device != Device::kCpu) {
    fail(ErrorCode::kUnsupported,
         "{}: {} of CUDA memory is not supported by any backend; copy to the host", self_, what);
  }
  PointToPointCall message{.peer = call.peer,
                           .tag = call.tag,
                           .dtype = buffer.dtype,
                           .count = buffer.count,
                           .data = const_cast<std::byte*>(buffer.data),
                           .shape = call.shape,
                           .keep_alive = options.keep_alive};
  if (call.sizes) {
    check(call.sizes->size() <= kMaxMessageSizes,
          "{}: {}: a tensor of {} dimensions; {} is the maximum for one that travels with its "
          "shape",
          self_, what, call.sizes->size(), kMaxMessageSizes);
    message.sizes.emplace(call.sizes->begin(), call.sizes->end());
  }
  return message;
}

WorkPtr ProcessGroup::post(const Call& call, bool asynchronous, const CallOptions& options) {
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
      throw said_by(self_, fmt::format("{} in group {}", name_of(call.op), name_), error);
    }
  });
}

std::vector<WorkPtr> ProcessGroup::batch_isend_irecv(std::span<const Call> messages,
                                                     const CallOptions& options) {
  for (const Call& message : messages) {
    check(traits_of(message.op).has(kIsMessage),
          "{}: batch_isend_irecv takes sends and receives, not {}", self_, name_of(message.op));
    make_message(message, options);
  }
  // Receives first, so that what comes has its place.
  std::vector<WorkPtr> works(messages.size());
  for (const Op op : {Op::kReceive, Op::kSend}) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].op == op) works[i] = post(messages[i], true, options);
    }
  }
  return works;
}

int ProcessGroup::recv(const Call& call, const CallOptions& options) {
  check(call.op == Op::kReceive, "{}: recv takes a call of recv, not of {}", self_,
        name_of(call.op));
  const auto work = post(call, false, options);
  work->wait();
  return work->source_rank();
}

}  // namespace paceline
