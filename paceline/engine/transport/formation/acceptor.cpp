#include "paceline/engine/transport/formation/acceptor.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline {

namespace {

using namespace std::chrono_literals;

constexpr auto kHandshakeTimeout = 3s;
// How long a connection may stay silent while its door is full.
constexpr auto kFirstWordTimeout = 1s;

// The number of bytes that receive_some() received; 0 if there were none.
std::size_t taken(const Fd& socket, ssize_t got) {
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && errno == EAGAIN) return 0;
  fail(ErrorCode::kPeerLost, "{} hung up", peer_name(socket));
}

}  // namespace

Acceptor::Acceptor(Doors doors, const Secret& secret, std::string group)
    : doors_(std::move(doors)), secret_(secret), group_(std::move(group)) {}

// poll() skips a door that has no room: its entry has no descriptor.
void Acceptor::add_to(std::vector<pollfd>& entries) {
  first_entry_ = entries.size();
  for (const bool is_local : {true, false}) {
    const bool has_room = num_strangers(is_local) < kMaxStrangers;
    entries.push_back({has_room ? door(is_local).get() : -1, POLLIN, 0});
  }
  for (const Caller& caller : callers_) {
    const int events = POLLIN | (caller.unsent.empty() ? 0 : POLLOUT);
    entries.push_back({caller.socket.get(), static_cast<short>(events), 0});
  }
}

std::vector<NewChannel> Acceptor::serve(std::span<const pollfd> entries) {
  entries = entries.subspan(first_entry_, kNumDoors + callers_.size());
  auto channels = hear_callers(entries.subspan(kNumDoors));
  for (const bool is_local : {true, false}) {
    if (num_strangers(is_local) == kMaxStrangers) drop_silent_callers(is_local);
    if (entries[is_local ? 0 : 1].revents != 0) let_in(is_local);
  }
  return channels;
}

// Only a few of hundreds of callers are ready at a time, so only the ready callers are read.
std::vector<NewChannel> Acceptor::hear_callers(std::span<const pollfd> entries) {
  std::vector<NewChannel> channels;
  auto entry = entries.begin();
  for (auto caller = callers_.begin(); caller != callers_.end();) {
    const bool is_ready = (entry++)->revents != 0;
    if (!is_ready && (caller->handshake.done() || !put_off(caller->deadline).expired())) {
      ++caller;
      continue;
    }
    bool done = true;
    try {
      done = advance(*caller);
      if (done) {
        ByteReader reader(caller->hello);
        const auto rank = reader.get<std::int32_t>();
        const auto channel = reader.get<std::int32_t>();
        channels.push_back({rank, channel, std::move(caller->socket), {}});
        if (caller->agrees_on_keys) channels.back().keys = caller->handshake.session_keys();
      }
    } catch (const Error& error) {
      log::warning(fmt::format("group {}: a connection was refused: {}", group_, error.what()));
      done = true;
    }
    caller = done ? callers_.erase(caller) : std::next(caller);
  }
  return channels;
}

std::size_t Acceptor::num_strangers(bool is_local) const {
  return static_cast<std::size_t>(
      std::count_if(callers_.begin(), callers_.end(), [=](const Caller& caller) {
        return caller.is_local == is_local && !caller.handshake.done();
      }));
}

void Acceptor::drop_silent_callers(bool is_local) {
  const auto gone = callers_.remove_if([=](const Caller& caller) {
    return caller.is_local == is_local && !caller.has_spoken &&
           put_off(caller.first_word).expired();
  });
  if (gone == 0) return;
  log::warning(
      fmt::format("group {}: {} silent connections were closed to make room", group_, gone));
}

void Acceptor::let_in(bool is_local) {
  const std::string& context = is_local ? doors_.local_context : doors_.tcp_context;
  const bool agrees_on_keys = !is_local && doors_.encrypts_tcp;
  const auto keys = agrees_on_keys ? ServerHandshake::Keys::kAgree : ServerHandshake::Keys::kNone;
  for (std::size_t strangers = num_strangers(is_local); strangers < kMaxStrangers; ++strangers) {
    Fd socket = accept_connection(door(is_local), Deadline::after(0ms));
    if (!socket) return;
    std::string name = peer_name(socket);
    callers_.push_back({std::move(socket), is_local, agrees_on_keys,
                        ServerHandshake(secret_, context, std::move(name), keys),
                        Deadline::after(kHandshakeTimeout), Deadline::after(kFirstWordTimeout)});
  }
}

// True once the caller's handshake and hello are complete and have been answered.
bool Acceptor::advance(Caller& caller) {
  answer(caller);
  while (!caller.handshake.done()) {
    std::vector<std::byte> reply;
    if (taken(caller.socket, caller.handshake.receive(caller.socket, reply)) == 0) break;
    caller.has_spoken = true;
    caller.unsent.add(std::move(reply));
    answer(caller);
  }
  if (caller.handshake.done() && read_hello(caller)) return caller.unsent.empty();
  if (!caller.handshake.done() && put_off(caller.deadline).expired()) {
    fail(ErrorCode::kTimeout, "{} did not identify itself within {} s", peer_name(caller.socket),
         kHandshakeTimeout.count());
  }
  return false;
}

void Acceptor::answer(Caller& caller) {
  if (caller.unsent.flush(caller.socket.get())) return;
  fail(ErrorCode::kPeerLost, "{} does not accept the answer", peer_name(caller.socket));
}

bool Acceptor::read_hello(Caller& caller) {
  while (caller.got < kHelloSize) {
    const auto room = std::span(caller.hello).subspan(caller.got);
    const std::size_t got = taken(caller.socket, receive_some(caller.socket.get(), room));
    if (got == 0) return false;
    caller.got += got;
  }
  return true;
}

}  // namespace paceline
