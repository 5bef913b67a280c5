#include "paceline/launcher/coordination/job_control.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/socket.h"

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

// While the connection is silent, makes a new call every half interval, because earlier calls may
// have been lost in a network outage.
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

namespace {

constexpr int kAcceptsAtOnce = 64;
// Limits for connections that have not proved the secret yet.
constexpr std::chrono::seconds kHandshakeTimeout{3};
constexpr std::size_t kMaxStrangers = 256;
constexpr std::chrono::milliseconds kListenerPause{50};
constexpr std::chrono::seconds kComplaintInterval{1};
// The longest time for which the coordinator waits for reports that may be under way.
constexpr std::chrono::nanoseconds kLongestWay = std::chrono::seconds(2);
// How many of the agents that may lead the job are asked at once, and how long each may take to
// answer.
constexpr std::size_t kMaxCalls = 32;
constexpr std::chrono::seconds kCallPatience{1};

std::size_t strangers_within_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxStrangers;
  return std::clamp<std::size_t>(limit.rlim_cur / 4, 1, kMaxStrangers);
}

Deadline::Clock::time_point now() { return Deadline::Clock::now(); }

Deadline at(Coordinator::Moment moment) {
  if (moment == Coordinator::Moment::max()) return Deadline::never();
  return Deadline::after(moment - AwakeClock::now());
}

Deadline at(Deadline::Clock::time_point moment) {
  if (moment == Deadline::Clock::time_point::max()) return Deadline::never();
  return Deadline::after(moment - now());
}

}  // namespace

CoordinatorHost::CoordinatorHost(EventLoop& loop, const CoordinatorSettings& settings)
    : loop_(loop), coordinator_(settings, AwakeClock::now()) {}

CoordinatorHost::CoordinatorHost(EventLoop& loop, const CoordinatorSettings& settings, Fd listener,
                                 const Secret& secret, const KeepAlive& keep_alive)
    : loop_(loop),
      coordinator_(settings, AwakeClock::now()),
      listener_(std::move(listener)),
      max_strangers_(strangers_within_descriptors()),
      secret_(secret),
      keep_alive_(keep_alive),
      next_signs_(now()) {
  fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
  loop_.watch(listener_.get(), [this] { accept_some(); });
}

CoordinatorHost::~CoordinatorHost() {
  if (listener_) loop_.forget(listener_.get());
  for (const auto& [agent, remote] : remotes_) loop_.forget(remote.link->fd());
}

void CoordinatorHost::report(const Report& report) {
  if (!lost_.empty()) return;
  coordinator_.receive(kOwn, report, AwakeClock::now());
  deliver();
}

std::vector<Order> CoordinatorHost::take_orders() {
  auto orders = std::exchange(own_orders_, {});
  if (!lost_.empty()) orders.clear();
  return orders;
}

void CoordinatorHost::accept_some() {
  if (!lost_.empty()) return;
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    Fd socket;
    try {
      socket = accept_connection(listener_, Deadline::after(std::chrono::milliseconds(0)));
    } catch (const Error& error) {
      if (drop_oldest_stranger(error.what())) continue;
      complain(fmt::format("cannot take a connection: {}", error.what()));
      return pause_listener();
    }
    if (!socket) return;
    admit(std::move(socket));
  }
}

void CoordinatorHost::admit(Fd socket) {
  const auto strangers = std::count_if(remotes_.begin(), remotes_.end(), [](const auto& entry) {
    return !entry.second.link->authenticated();
  });
  if (static_cast<std::size_t>(strangers) >= max_strangers_) {
    drop_oldest_stranger("too many connections have not identified themselves");
  }
  const Agent agent = ++last_agent_;
  const int fd = socket.get();
  remotes_[agent].link = std::make_unique<AgentLink>(std::move(socket), *secret_);
  loop_.watch(fd, [this, agent] { serve(agent); });
}

// Returns false if there is no stranger to drop.
bool CoordinatorHost::drop_oldest_stranger(const std::string& cause) {
  const auto oldest = std::find_if(remotes_.begin(), remotes_.end(), [](const auto& entry) {
    return !entry.second.link->authenticated();
  });
  if (oldest == remotes_.end()) return false;
  drop(oldest->first, fmt::format("{}: {}", oldest->second.link->peer(), cause));
  return true;
}

// Ignores the listener for a while: it stays readable while a connection waits to be accepted, and
// would wake the loop again and again.
void CoordinatorHost::pause_listener() {
  loop_.change(listener_.get(), 0);
  resume_at_ = now() + kListenerPause;
}

void CoordinatorHost::complain(const std::string& what) {
  if (now() - last_complaint_ < kComplaintInterval) {
    ++num_unsaid_;
    return;
  }
  last_complaint_ = now();
  const int unsaid = std::exchange(num_unsaid_, 0);
  log::warning(fmt::format("the job's coordinator {}{}", what,
                           unsaid == 0 ? "" : fmt::format(" (and {} similar before)", unsaid)));
}

void CoordinatorHost::serve(Agent agent) {
  if (!lost_.empty()) return;
  try {
    remotes_.at(agent).link->flush();
    for (const std::string& text : remotes_.at(agent).link->read()) {
      take(agent, decode_report(text));
      if (!remotes_.contains(agent)) break;  // dropped: an answer could not be sent
    }
    const auto found = remotes_.find(agent);
    if (found != remotes_.end()) watch_for_room(found->second);
  } catch (const Error& error) {
    drop(agent, error.what());
  }
  deliver();
}

void CoordinatorHost::take(Agent agent, const Report& report) {
  if (const auto* joining = std::get_if<Joining>(&report)) {
    remotes_.at(agent).stand_in = joining->stand_in;
    remotes_.at(agent).link->compare_clocks();
  }
  if (const auto* alive = std::get_if<Alive>(&report)) return hear(agent, *alive);
  if (const auto* failure = std::get_if<RankFailure>(&report)) {
    return coordinator_.receive(agent, on_own_clock(agent, *failure), AwakeClock::now());
  }
  const auto* giving_up = std::get_if<GivingUp>(&report);
  if (giving_up == nullptr) return coordinator_.receive(agent, report, AwakeClock::now());
  const auto host = coordinator_.follower(agent);
  if (!host) return;  // the agent closes this connection; it may join again
  if (!coordinator_.add_deserter(agent)) {
    fail(ErrorCode::kPeerLost, "{} heard nothing from this node for {:g} s",
         remotes_.at(agent).link->peer(), giving_up->silence.count() / 1000.0);
  }
  lost_ = fmt::format(
      "the job's coordinator, which is this node's agent: host {} heard nothing from it for {:g} s "
      "and continues without it",
      *host, giving_up->silence.count() / 1000.0);
}

// Handles a sign of life that an agent gives over an additional connection, because its first
// connection stays silent while TCP waits after a network outage.
void CoordinatorHost::hear(Agent caller, const Alive& alive) {
  const auto found = std::find_if(remotes_.begin(), remotes_.end(), [&](const auto& entry) {
    return entry.second.stand_in == alive.stand_in;
  });
  if (found == remotes_.end()) return;
  found->second.link->heard_elsewhere();
  send(caller, encode(HeardOrder{alive.stand_in}));
}

RankFailure CoordinatorHost::on_own_clock(Agent agent, RankFailure report) const {
  const auto found = remotes_.find(agent);
  Failure& failure = report.failure;
  if (found == remotes_.end() || !failure.at) return report;
  const ClockComparison& clock = found->second.link->clock();
  if (clock.measured() && is_plausible_reading(*failure.at)) {
    *failure.at += clock.offset();
    failure.clock_error = clock.error();
  } else {
    failure.at.reset();
  }
  return report;
}

void CoordinatorHost::deliver() {
  if (!lost_.empty()) return;
  for (auto mail = coordinator_.take_mail(); !mail.empty(); mail = coordinator_.take_mail()) {
    for (auto& [to, order] : mail) {
      if (to == kOwn) {
        own_orders_.push_back(std::move(order));
      } else {
        send(to, encode(order));
      }
    }
  }
}

void CoordinatorHost::send(Agent agent, const std::string& text) {
  with_link(agent, [&](AgentLink& link) { link.send(text); });
}

template <class Action>
void CoordinatorHost::with_link(Agent agent, Action action) {
  const auto found = remotes_.find(agent);
  if (found == remotes_.end()) return;
  try {
    action(*found->second.link);
    watch_for_room(found->second);
  } catch (const Error& error) {
    drop(agent, error.what());
  }
}

void CoordinatorHost::watch_for_room(Remote& remote) {
  const bool wanted = remote.link->has_output();
  if (std::exchange(remote.wants_room, wanted) == wanted) return;
  loop_.change(remote.link->fd(), wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void CoordinatorHost::drop(Agent agent, const std::string& cause) {
  const auto found = remotes_.find(agent);
  if (found == remotes_.end()) return;
  const bool authenticated = found->second.link->authenticated();
  if (!authenticated) complain(fmt::format("refused a connection: {}", cause));
  loop_.forget(found->second.link->fd());
  remotes_.erase(found);
  if (authenticated) coordinator_.lose(agent, cause, AwakeClock::now());
}

void CoordinatorHost::tend() {
  if (!lost_.empty()) return;
  loop_.look();
  take_answers();
  const auto awake = AwakeClock::now();
  if (coordinator_.next_deadline() <= awake) coordinator_.tick(awake);
  const Moment moment = now();
  if (next_signs_ <= moment) check_signs_of_life();
  if (resume_at_ <= moment) {
    resume_at_ = Moment::max();
    loop_.change(listener_.get(), EPOLLIN);
  }
  deliver();
}

void CoordinatorHost::check_signs_of_life() {
  next_signs_ = now() + keep_alive_.interval;
  const KeepAlive limits = patience();
  std::vector<std::pair<Agent, std::string>> silent;
  for (const auto& [agent, remote] : remotes_) {
    const AgentLink& link = *remote.link;
    const bool known = link.authenticated();
    const bool speaks = link.silence() <= (known ? limits.longest_silence() : kHandshakeTimeout);
    if (speaks && (!known || link.standstill() <= limits.longest_standstill())) continue;
    const std::chrono::milliseconds limit = known ? limits.limit() : kHandshakeTimeout;
    silent.emplace_back(agent, fmt::format("{} gave no sign of life for {:g} s", link.peer(),
                                           limit.count() / 1000.0));
  }
  for (const auto& [agent, cause] : silent) drop(agent, cause);
  std::vector<Agent> all;
  for (const auto& [agent, remote] : remotes_) {
    if (remote.link->authenticated()) all.push_back(agent);
  }
  std::chrono::nanoseconds longest{};
  for (const Agent agent : all) {
    with_link(agent, [&](AgentLink& link) {
      longest = std::max(longest, link.clock().longest_round_trip());
      link.compare_clocks();
    });
  }
  coordinator_.expect_reports_within(std::min(longest, kLongestWay));
  ask_others();
}

// Asks the agents that may lead the job, at most kMaxCalls at a time, in turn.
void CoordinatorHost::ask_others() {
  std::erase_if(calls_, [](const auto& call) { return call->over(); });
  const std::vector<Endpoint> others = coordinator_.others_to_ask();
  for (std::size_t i = 0; i < others.size() && calls_.size() < kMaxCalls; ++i) {
    const Endpoint& other = others[next_to_ask_++ % others.size()];
    const bool is_asked = std::any_of(calls_.begin(), calls_.end(),
                                      [&](const auto& call) { return call->agent() == other; });
    if (is_asked) continue;
    calls_.push_back(std::make_unique<AgentCall>(loop_, other, *secret_,
                                                 coordinator_.question_to(other), kCallPatience));
  }
}

void CoordinatorHost::take_answers() {
  for (const auto& call : calls_) {
    const auto answer = call->take_answer();
    if (!answer) continue;
    if (const auto* order = std::get_if<FollowOrder>(&*answer)) {
      coordinator_.follow(order->leader, AwakeClock::now());
    }
  }
}

// How long an agent may be silent. While a generation is being stopped, the limit is the default
// one if that is shorter, because the loss of an agent then ends no work.
KeepAlive CoordinatorHost::patience() const {
  const bool usual = !coordinator_.stopping() || keep_alive_.limit() <= KeepAlive{}.limit();
  return usual ? keep_alive_ : KeepAlive{};
}

Deadline CoordinatorHost::next_deadline() const {
  const Deadline own = at(std::min(next_signs_, resume_at_)),
                 led = at(coordinator_.next_deadline());
  return own.moment() < led.moment() ? own : led;
}

bool CoordinatorHost::flushed() const {
  return std::none_of(remotes_.begin(), remotes_.end(),
                      [](const auto& entry) { return entry.second.link->has_output(); });
}

}  // namespace paceline::launcher
