// A socket that both ends read and write without any library: the least cost of a call without
// shared memory. Both ends block in their system calls; the callee answers all requests of one read
// with one write.

#include <algorithm>

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"

#include "apps/bench/contestant/call_contestant.h"

namespace paceline::bench {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kChunk = 64 << 10;
constexpr std::uint64_t kToldAtOnce = 64;

// Returns false at the end of the connection.
bool write_all(const Fd& socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

Fd connection_of(const CallPlace& place) {
  const Deadline deadline = Deadline::after(60s);
  Fd socket;
  if (place.is_caller) {
    socket =
        place.uses_tcp ? connect_tcp(place.tcp, deadline) : connect_unix(place.unix_name, deadline);
  } else {
    const Fd listener = place.uses_tcp ? listen_tcp(place.tcp) : listen_unix(place.unix_name);
    socket = accept_connection(listener, deadline);
    if (!socket) fail(ErrorCode::kTimeout, "the caller did not connect");
  }
  const int on = 1;
  if (place.uses_tcp) ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::fcntl(socket.get(), F_SETFL, 0);  // its system calls block
  return socket;
}

// Answers until the connection ends.
void answer(const Fd& socket) {
  std::vector<std::byte> requests(kChunk), replies;
  std::size_t filled = 0;
  for (;;) {
    const ssize_t count = ::read(socket.get(), requests.data() + filled, requests.size() - filled);
    if (count <= 0) return;
    filled += static_cast<std::size_t>(count);
    std::size_t done = 0;
    while (filled - done >= sizeof(CallHead)) {
      const CallHead head = head_of({requests.data() + done, sizeof(CallHead)});
      if (filled - done < head.bytes) {
        requests.resize(std::max<std::size_t>(requests.size(), head.bytes));
        break;
      }
      const std::byte* const request = requests.data() + done;
      replies.insert(replies.end(), request, request + head.reply_bytes);
      done += head.bytes;
    }
    if (done > 0) std::copy(requests.data() + done, requests.data() + filled, requests.data());
    filled -= done;
    if (!write_all(socket, replies)) return;
    replies.clear();
  }
}

class SocketCalls : public CallContestant {
 public:
  explicit SocketCalls(const CallPlace& place)
      : way_(way_of(place)), socket_(connection_of(place)), replies_(kChunk) {
    if (!place.is_caller) answerer_ = start_thread("answerer", [this] { answer(socket_); });
  }
  ~SocketCalls() override { ::shutdown(socket_.get(), SHUT_RDWR); }  // ends the thread that answers

  std::string version() const override { return fmt::format("read() and write(), {}", way_); }
  std::string lacks(const CallTurn& turn) const override {
    return turn.form == CallTurn::Form::kBlocking && turn.width > 1 ? "has one caller" : "";
  }

  void call(std::span<const std::byte> request) override {
    send(request);
    for (std::size_t left = head_of(request).reply_bytes; left > 0;) left -= receive(left);
  }

  // Each write sends all requests that may be sent now: at most kChunk bytes, because both ends
  // would wait forever if the bytes under way did not fit into the sockets' buffers.
  std::uint64_t pipeline(const CallLoad& load) override {
    const std::size_t size = load.turn().bytes, reply = load.turn().reply_bytes;
    const auto width = std::min(static_cast<std::uint64_t>(load.turn().width), kChunk / size);
    const auto requests = repeated(load.request(), width);
    std::uint64_t sent = 0, received_bytes = 0;
    for (;;) {
      const std::uint64_t room = width - (sent - received_bytes / reply);
      if (room > 0 && load.goes_on()) {
        send(std::span(requests).first(room * size));
        sent += room;
      }
      if (received_bytes == sent * reply) return sent;
      received_bytes += receive(kChunk);
    }
  }

  std::uint64_t tell(const CallLoad& load) override {
    const auto requests = repeated(load.request(), kToldAtOnce);
    std::uint64_t told = 0;
    for (; load.goes_on(); told += kToldAtOnce) send(requests);
    auto last = CallTurn{.bytes = sizeof(CallHead), .reply_bytes = sizeof(CallHead)};
    call(CallLoad(last).request());
    return told;
  }

 private:
  static std::vector<std::byte> repeated(std::span<const std::byte> request, std::uint64_t times) {
    std::vector<std::byte> all;
    for (std::uint64_t i = 0; i < times; ++i) all.insert(all.end(), request.begin(), request.end());
    return all;
  }
  void send(std::span<const std::byte> bytes) {
    if (!write_all(socket_, bytes)) fail(ErrorCode::kPeerLost, "the callee has gone");
  }
  std::size_t receive(std::size_t most) {
    const ssize_t count = ::read(socket_.get(), replies_.data(), std::min(most, kChunk));
    if (count <= 0) fail(ErrorCode::kPeerLost, "the callee has gone");
    return static_cast<std::size_t>(count);
  }

  const std::string way_;
  const Fd socket_;
  std::vector<std::byte> replies_;
  std::jthread answerer_;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_call_worker(argc, argv, [](const paceline::bench::CallPlace& place) {
    return std::make_unique<paceline::bench::SocketCalls>(place);
  });
}
