// The group's messages between two ranks, which follow no common order.

#include "paceline/collectives/process_group.h"
#include "paceline/core/check.h"

namespace paceline {

PointToPointCall ProcessGroup::make_message(const char* what, ConstBuffer buffer, int peer,
                                            std::uint32_t tag, const CallOptions& options) const {
  require_member(what);
  check((peer >= 0 && peer < world_size() && peer != rank_) || peer == kAnySource,
        "rank {}: {}: peer {} is not another rank of group {}, which has {} ranks", rank_, what,
        peer, name_, world_size());
  check(buffer.data != nullptr || buffer.count == 0, "rank {}: {}: the buffer is null", rank_,
        what);
  if (buffer.device != Device::kCpu) {
    fail(ErrorCode::kUnsupported, "rank {}: {} of CUDA memory is in no backend; copy to the host",
         rank_, what);
  }
  return {peer,
          tag,
          buffer.dtype,
          buffer.count,
          const_cast<std::byte*>(buffer.data),
          options.keep_alive};
}

WorkPtr ProcessGroup::post(Op op, const PointToPointCall& call, bool asynchronous,
                           const CallOptions& options) {
  require_own_process(op == Op::kSend ? "send" : "recv");
  return flight_.message(op, call, asynchronous, [&] {
    const Deadline deadline = deadline_of(options);
    return op == Op::kSend ? backend_->send(call, deadline) : backend_->receive(call, deadline);
  });
}

WorkPtr ProcessGroup::send_async(ConstBuffer buffer, int peer, std::uint32_t tag,
                                 const CallOptions& options) {
  check(peer != kAnySource, "rank {}: send: there is no any-source for a send", rank_);
  return post(Op::kSend, make_message("send", buffer, peer, tag, options), true, options);
}

WorkPtr ProcessGroup::recv_async(Buffer buffer, int peer, std::uint32_t tag,
                                 const CallOptions& options) {
  require_member("recv");
  check(world_size() > 1, "rank {}: recv: group {} has no other rank", rank_, name_);
  return post(Op::kReceive, make_message("recv", buffer, peer, tag, options), true, options);
}

void ProcessGroup::send(ConstBuffer buffer, int peer, std::uint32_t tag,
                        const CallOptions& options) {
  check(peer != kAnySource, "rank {}: send: there is no any-source for a send", rank_);
  post(Op::kSend, make_message("send", buffer, peer, tag, options), false, options)->wait();
}

int ProcessGroup::recv(Buffer buffer, int peer, std::uint32_t tag, const CallOptions& options) {
  require_member("recv");
  check(world_size() > 1, "rank {}: recv: group {} has no other rank", rank_, name_);
  const auto work =
      post(Op::kReceive, make_message("recv", buffer, peer, tag, options), false, options);
  work->wait();
  return work->source_rank();
}

}  // namespace paceline
