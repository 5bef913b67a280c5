#include "paceline/engine/transport/addresses.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/vigil.h"
#include "paceline/engine/transport/agreement.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kPause = 1s;
// So that it is over after a pause.
constexpr std::chrono::nanoseconds kReadingPause = 900ms;
// How soon the parent is looked after first, and how often then; less often by many ranks, whose
// questions are long.
constexpr std::chrono::nanoseconds kFirstLook = 10ms;
constexpr std::chrono::nanoseconds kLookPause = 100ms;
constexpr std::chrono::nanoseconds kLookPauseByRank = 2ms;
// What is asked for at once; a store's reply has a limit.
constexpr std::size_t kBytesAtOnce = 4 << 20;

class Fetcher {
 public:
  Fetcher(const ConnectOptions& options, const std::string& own, Deadline deadline,
          const LookAround& look_around)
      : options_(options),
        num_at_once_(std::max<std::size_t>(kBytesAtOnce / own.size(), 1)),
        deadline_(deadline),
        look_around_(look_around) {}

  std::vector<PeerAddress> run() {
    const auto count = static_cast<std::size_t>(options_.world_size);
    std::vector<int> ranks(count);
    std::iota(ranks.begin(), ranks.end(), 0);
    peers_.resize(count);
    for (std::span<const int> left = ranks; !left.empty();) {
      const auto some = left.first(std::min(left.size(), num_at_once_));
      fetch_all({some.begin(), some.end()});
      left = left.subspan(some.size());
    }
    return std::move(peers_);
  }

 private:
  // In pieces of time: a rank that gave up first does not publish anything.
  void fetch_all(std::vector<int> missing) {
    auto next_reading = Deadline::after(kReadingPause);
    std::chrono::nanoseconds slice = options_.look_after_parent ? kFirstLook : kPause;
    while (!take(missing, std::min(put_off(deadline_).remaining(), slice))) {
      if (next_reading.expired() || put_off(deadline_).expired()) {
        // What is there may say why the others are missing.
        std::erase_if(missing, [&](int rank) { return take({rank}, 0ns); });
        if (missing.empty()) return;
        next_reading = Deadline::after(kReadingPause);
      }
      look_around_(missing);
      if (put_off(deadline_).expired()) {
        fail(ErrorCode::kTimeout, "{}: rank {} of group {} did not arrive within {} ms",
             options_.self(), missing.front(), options_.name, options_.timeout.count());
      }
      slice = std::min(
          {2 * slice, std::max(kLookPause, kLookPauseByRank * options_.world_size), kPause});
      if (!options_.look_after_parent) slice = kPause;
    }
  }

  // False when some did not arrive in that time.
  bool take(const std::vector<int>& ranks, std::chrono::nanoseconds wait) {
    std::vector<std::string> values;
    try {
      values = options_.fetch(ranks, std::chrono::ceil<std::chrono::milliseconds>(wait));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kTimeout) return false;
      throw Error(error.code(), fmt::format("{}: the addresses of group {} did not arrive: {}",
                                            options_.self(), options_.name, error.what()));
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) take(ranks[i], values.at(i));
    return true;
  }

  void take(int rank, const std::string& value) {
    PeerAddress& peer = peers_[static_cast<std::size_t>(rank)];
    peer = PeerAddress::decode(value);
    require_agreement(options_, rank, peer);
    peer.members = {};  // as many as there are ranks, for each of them
  }

  const ConnectOptions& options_;
  const std::size_t num_at_once_;
  const Deadline deadline_;
  const LookAround& look_around_;
  std::vector<PeerAddress> peers_;
};

}  // namespace

std::vector<PeerAddress> fetch_addresses(const ConnectOptions& options, const std::string& own,
                                         Deadline deadline, const LookAround& look_around) {
  return Fetcher(options, own, deadline, look_around).run();
}

}  // namespace paceline
