// The group's messages between two ranks, which follow no common order.

#include "paceline/collectives/process_group.h"
#include "paceline/core/check.h"

namespace paceline {

PointToPointCall ProcessGroup::make_message(const char* what, ConstBuffer buffer, int peer,
                                            std::uint32_t tag, const CallOptions& options) const {
  require_member(what);
  check((peer >= 0 && peer < world_size() && peer != rank_) || peer == kAnySource,
        "{}: {}: peer {} is not another rank of group {}, which has {} ranks", self_, what, peer,
        name_, world_size());
  require_addressable(what, buffer.dtype, buffer.count, 1);
  check(buffer.data != nullptr || buffer.count == 0, "{}: {}: the buffer is null", self_, what);
  if (buffer.device != Device::kCpu) {
    fail(ErrorCode::kUnsupported, "{}: {} of CUDA memory is in no backend; copy to the host", self_,
         what);
  }
  return {peer,
          tag,
          buffer.dtype,
          buffer.count,
          const_cast<std::byte*>(buffer.data),
          options.keep_alive};
}

WorkPtr ProcessGroup::post(Op op, PointToPointCall call, bool asynchronous,
                           const CallOptions& options) {
  require_own_process(op == Op::kSend ? "send" : "recv");
  require_time(options);
  call.is_blocking = !asynchronous;
  return flight_.message(op, call, asynchronous, [&] {
    const Deadline deadline = deadline_of(options);
    try {
      return op == Op::kSend ? backend_->send(call, deadline) : backend_->receive(call, deadline);
    } catch (const Error& error) {
      throw said_by(self_, fmt::format("{} in group {}", name_of(op), name_), error);
    }
  });
}

WorkPtr ProcessGroup::send_async(ConstBuffer buffer, int peer, std::uint32_t tag,
                                 const CallOptions& options) {
  check(peer != kAnySource, "{}: send: there is no any-source for a send", self_);
  return post(Op::kSend, make_message("send", buffer, peer, tag, options), true, options);
}

WorkPtr ProcessGroup::recv_async(Buffer buffer, int peer, std::uint32_t tag,
                                 const CallOptions& options) {
  require_member("recv");
  check(world_size() > 1, "{}: recv: group {} has no other rank", self_, name_);
  return post(Op::kReceive, make_message("recv", buffer, peer, tag, options), true, options);
}

void ProcessGroup::send(ConstBuffer buffer, int peer, std::uint32_t tag,
                        const CallOptions& options) {
  check(peer != kAnySource, "{}: send: there is no any-source for a send", self_);
  post(Op::kSend, make_message("send", buffer, peer, tag, options), false, options)->wait();
}

int ProcessGroup::recv(Buffer buffer, int peer, std::uint32_t tag, const CallOptions& options) {
  require_member("recv");
  check(world_size() > 1, "{}: recv: group {} has no other rank", self_, name_);
  const auto work =
      post(Op::kReceive, make_message("recv", buffer, peer, tag, options), false, options);
  work->wait();
  return work->source_rank();
}

}  // namespace paceline
