#include "paceline/engine/transport/dialer.h"

#include <algorithm>

#include "paceline/engine/core/check.h"

namespace paceline {

Dialer::Dialer(Caller self, std::vector<Callee> callees, const Secret& secret, std::string group)
    : self_(std::move(self)),
      callees_(std::move(callees)),
      secret_(secret),
      group_(std::move(group)) {
  for (const Callee& callee : callees_) waiting_.emplace_back(&callee, Channel::kControl);
}

void Dialer::add_to(std::vector<pollfd>& entries) {
  while (!waiting_.empty() && calls_.size() < kMostAtOnce) {
    const auto [callee, channel] = waiting_.front();
    waiting_.pop_front();
    calls_.emplace_back(self_.rank, *callee, channel, secret_);
  }
  first_entry_ = entries.size();
  for (const Dial& call : calls_) entries.push_back(call.entry());
}

std::chrono::nanoseconds Dialer::time_left() const {
  auto least = Deadline::never().remaining();
  for (const Dial& call : calls_) least = std::min(least, call.time_left());
  return least;
}

std::vector<NewChannel> Dialer::serve(std::span<const pollfd> entries) {
  std::vector<NewChannel> channels;
  auto entry = entries.subspan(first_entry_, calls_.size()).begin();
  for (auto call = calls_.begin(); call != calls_.end(); ++entry) {
    if (!go_on(*call, entry->revents != 0)) {
      ++call;
      continue;
    }
    channels.push_back(call->take());
    if (call->channel() == Channel::kControl) {
      for (int channel = call->callee().num_channels - 1; channel > 0; --channel) {
        waiting_.emplace_front(&call->callee(), static_cast<Channel>(channel));
      }
    }
    call = calls_.erase(call);
  }
  return channels;
}

bool Dialer::go_on(Dial& call, bool is_ready) const {
  try {
    return call.go_on(is_ready);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: connecting to {} of group {} failed: {}", self_.name,
                                          call.callee().description, group_, error.what()));
  }
}

}  // namespace paceline
