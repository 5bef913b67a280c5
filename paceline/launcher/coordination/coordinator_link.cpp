#include "paceline/launcher/coordination/coordinator_link.h"

#include <string_view>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/handshake.h"

namespace paceline::launcher {
namespace {

constexpr std::chrono::seconds kLinkHandshakeTimeout{3};

}  // namespace

CoordinatorLink::CoordinatorLink(EventLoop& loop, const Endpoint& endpoint, const Secret& secret,
                                 const KeepAlive& keep_alive, Deadline deadline)
    : loop_(loop), endpoint_(endpoint), secret_(secret), keep_alive_(keep_alive) {
  Fd socket = connect_tcp(endpoint, deadline);
  authenticate_as_client(socket, secret, kAgentContext, Deadline::after(kLinkHandshakeTimeout));
  local_address_ = paceline::local_address(socket);
  peer_ = peer_endpoint(socket);
  link_ = std::make_unique<AgentLink>(std::move(socket));
  loop_.watch(link_->fd(), [this] { serve(); });
}

CoordinatorLink::~CoordinatorLink() { loop_.forget(link_->fd()); }

template <class Action>
void CoordinatorLink::guard(Action action) {
  if (!lost_.empty()) return;
  try {
    action();
    const bool wanted = link_->has_output();
    if (std::exchange(wants_room_, wanted) != wanted) {
      loop_.change(link_->fd(), wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
  } catch (const Error& error) {
    const std::string where = to_string(endpoint_) + ": ";
    const std::string_view what = error.what();
    lost_ = fmt::format("the job's coordinator at {}{}", where,
                        what.starts_with(where) ? what.substr(where.size()) : what);
    loop_.forget(link_->fd());
  }
}

void CoordinatorLink::report(const Report& report) {
  if (const auto* joining = std::get_if<Joining>(&report)) stand_in_ = joining->stand_in;
  guard([&] { link_->send(encode(report)); });
}

void CoordinatorLink::serve() {
  guard([this] {
    link_->flush();
    for (const std::string& text : link_->read()) orders_.push_back(decode_order(text));
  });
}

void CoordinatorLink::tend() {
  for (const auto& call : calls_) {
    const auto answer = call->take_answer();
    if (answer && std::holds_alternative<HeardOrder>(*answer)) link_->heard_elsewhere();
  }
  const auto now = Deadline::Clock::now();
  if (now < next_sign_) return;
  next_sign_ = now + keep_alive_.interval;
  loop_.look();
  guard([&] {
    if (link_->silence() > keep_alive_.longest_silence() ||
        link_->standstill() > keep_alive_.longest_standstill()) {
      link_->send(encode(GivingUp{keep_alive_.limit()}));
      throw Error(ErrorCode::kPeerLost,
                  fmt::format("no sign of life for {:g} s", keep_alive_.limit().count() / 1000.0));
    }
    link_->send_sign_of_life();
    call_if_silent();
  });
}

// Makes one more call each time, more often than signs of life are due, because earlier calls may
// be lost in the gap.
void CoordinatorLink::call_if_silent() {
  std::erase_if(calls_, [](const auto& call) { return call->over(); });
  if (link_->standstill() <= 2 * keep_alive_.interval) return;
  calls_.push_back(std::make_unique<AgentCall>(loop_, peer_, secret_, Alive{stand_in_},
                                               keep_alive_.longest_silence()));
  next_sign_ = Deadline::Clock::now() + keep_alive_.interval / 2;
}

Deadline CoordinatorLink::next_deadline() const {
  if (!lost_.empty()) return Deadline::never();
  return Deadline::after(next_sign_ - Deadline::Clock::now());
}

}  // namespace paceline::launcher
