#include "paceline/engine/transport/ucx/ucx.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <poll.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/transport/socket_wire.h"
#include "paceline/engine/transport/ucx/worker.h"
#include "paceline/engine/transport/wire.h"

namespace paceline::ucx {

namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kMaxAddressBytes = 64 << 10;
// A wait for UCX is at most this long, because UCX's shared memory does not always wake a sleeper.
constexpr auto kLongestSleep = 2ms;
constexpr std::byte kGreeting{0x47};  // sent on UCX's channels, then on the data socket
constexpr std::byte kFarewell{0x46};
constexpr const char* kAdvice = "see the output of that rank, or choose --transport tcp";
constexpr std::chrono::seconds kLingerLimit{1};

// A wire of sockets that uses UCX for the data and point-to-point channels to `remote` ranks.
//
// A rank that ends waits for up to kLingerLimit until these ranks have left as well or have died,
// because bytes that a peer has not received yet are lost with the UCX connection.
class UcxWire : public Wire {
 public:
  // Requires: `sockets` connects all ranks. If the constructor succeeds, the caller passes the
  // sockets to own().
  UcxWire(const Api& api, SocketWire& sockets, const std::vector<int>& remote,
          const DescribeRank& describe, Deadline deadline);
  void own(std::unique_ptr<SocketWire> sockets) { owned_ = std::move(sockets); }
  ~UcxWire() override;
  UcxWire(const UcxWire&) = delete;
  UcxWire& operator=(const UcxWire&) = delete;

  const char* name() const override { return "ucx"; }
  bool is_connected(int peer) const override { return sockets_->is_connected(peer); }
  ssize_t send(int peer, Channel channel, std::span<const std::byte> head,
               std::span<const std::byte> rest) override;
  ssize_t receive(int peer, Channel channel, std::span<std::byte> into) override;
  ssize_t peek(int peer, Channel channel, std::span<std::byte> into) override;
  void wait(std::span<Interest> interests, std::chrono::milliseconds limit) override;
  void wait_or_wake(std::span<Interest> interests,
                    std::optional<std::chrono::milliseconds> limit) override;
  void wake() override { sockets_->wake(); }
  void cancel(Channel channel) override;
  int socket(int peer, Channel channel) const override;

 private:
  // The greetings that a rank and a peer exchange before the group has formed, on the data and the
  // point-to-point channel.
  struct Greeting {
    int peer;
    bool has_sent[2] = {}, has_received[2] = {};
    bool has_said_done = false, has_heard_done = false;
  };

  // The worker of a channel; null if the channel is a socket.
  Worker* worker(int peer, Channel channel) const;
  void introduce(int peer, Deadline deadline);
  void meet(int peer, Deadline deadline);
  void greet_all(Deadline deadline);
  void greet(Greeting& greeting, Worker& worker, int channel);
  bool tell_and_hear(Greeting& greeting, Deadline deadline);
  void write_all(int peer, std::span<const std::byte> bytes, Deadline deadline);
  void read_all(int peer, std::span<std::byte> bytes, Deadline deadline);
  void wait_for(std::span<Interest> interests, std::optional<std::chrono::milliseconds> limit,
                bool wakeable);
  void linger();
  [[noreturn]] void fail_of_end(int peer) const;

  const OwnerProcess owner_;
  SocketWire* const sockets_;
  std::unique_ptr<SocketWire> owned_;
  const std::vector<int> remote_;
  const DescribeRank describe_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Worker> data_, point_to_point_;
};

}  // namespace

UcxWire::UcxWire(const Api& api, SocketWire& sockets, const std::vector<int>& remote,
                 const DescribeRank& describe, Deadline deadline)
    : sockets_(&sockets),
      remote_(remote),
      describe_(describe),
      context_(std::make_unique<Context>(api)),
      data_(std::make_unique<Worker>(*context_, sockets.world_size())),
      point_to_point_(std::make_unique<Worker>(*context_, sockets.world_size())) {
  for (const int peer : remote_) introduce(peer, deadline);
  for (const int peer : remote_) meet(peer, deadline);
  greet_all(deadline);
}

// A child made by fork() shares the connections, and must not end them.
UcxWire::~UcxWire() {
  if (!owner_.is_this()) {
    (void)data_.release();
    (void)point_to_point_.release();
    (void)context_.release();
  } else {
    linger();
  }
}

// Sends this rank's UCX addresses over the data socket, which later carries a greeting and a
// farewell but no data.
void UcxWire::introduce(int peer, Deadline deadline) {
  ByteWriter writer;
  writer.put_string(data_->address());
  writer.put_string(point_to_point_->address());
  const auto text = writer.bytes();
  const auto size = static_cast<std::uint32_t>(text.size());
  write_all(peer, std::as_bytes(std::span(&size, 1)), deadline);
  write_all(peer, text, deadline);
}

void UcxWire::meet(int peer, Deadline deadline) {
  std::uint32_t size = 0;
  read_all(peer, std::as_writable_bytes(std::span(&size, 1)), deadline);
  if (size > 2 * kMaxAddressBytes) {
    fail(ErrorCode::kCorrupt, "{} announced a UCX address of {} bytes", describe_(peer), size);
  }
  std::vector<std::byte> text(size);
  read_all(peer, text, deadline);
  ByteReader reader(text);
  const std::string data = reader.get_string(kMaxAddressBytes);
  const std::string point_to_point = reader.get_string(kMaxAddressBytes);
  if (data.empty() || point_to_point.empty()) {
    fail(ErrorCode::kCorrupt, "{} has no address in UCX", describe_(peer));
  }
  data_->connect(peer, data);
  point_to_point_->connect(peer, point_to_point);
}

// Exchanges greetings with all peers. UCX connects two workers at the first send, which should
// happen now and not in the first collective.
void UcxWire::greet_all(Deadline deadline) {
  std::vector<Greeting> greetings;
  std::vector<Interest> interests;
  for (const int peer : remote_) {
    greetings.push_back({peer});
    interests.push_back({peer, Channel::kControl, POLLIN});
  }
  for (Vigil vigil;;) {
    bool all_done = true;
    for (Greeting& greeting : greetings) {
      greet(greeting, *data_, 0);
      greet(greeting, *point_to_point_, 1);
      all_done &= tell_and_hear(greeting, deadline);
    }
    if (all_done) return;
    if (vigil.sees_passed(deadline))
      fail(ErrorCode::kTimeout, "connecting by UCX took too long; {}", kAdvice);
    sockets_->wait(interests, 1ms);
  }
}

void UcxWire::greet(Greeting& greeting, Worker& worker, int channel) {
  if (!greeting.has_sent[channel]) {
    greeting.has_sent[channel] = worker.send(greeting.peer, {&kGreeting, 1}, {}) == 1;
  }
  if (!worker.is_ready(greeting.peer, POLLIN) || greeting.has_received[channel]) return;
  std::byte said{};
  const ssize_t got = worker.receive(greeting.peer, {&said, 1});
  if (got < 0 && !would_block(errno)) {
    fail(ErrorCode::kPeerLost, "UCX cannot reach {}; {}", describe_(greeting.peer), kAdvice);
  }
  greeting.has_received[channel] = got == 1;
}

bool UcxWire::tell_and_hear(Greeting& greeting, Deadline deadline) {
  const bool is_connected = greeting.has_sent[0] && greeting.has_sent[1] &&
                            greeting.has_received[0] && greeting.has_received[1];
  if (is_connected && !greeting.has_said_done) {
    write_all(greeting.peer, {&kGreeting, 1}, deadline);
    greeting.has_said_done = true;
  }
  if (!greeting.has_heard_done) {
    std::byte said{};
    const ssize_t got = sockets_->receive(greeting.peer, Channel::kData, {&said, 1});
    if (got == 0) fail_of_end(greeting.peer);
    greeting.has_heard_done = got == 1;
  }
  return greeting.has_said_done && greeting.has_heard_done;
}

void UcxWire::write_all(int peer, std::span<const std::byte> bytes, Deadline deadline) {
  if (send_whole(*sockets_, peer, Channel::kData, bytes, deadline)) return;
  if (errno == ETIMEDOUT && put_off(deadline).expired())
    fail(ErrorCode::kTimeout, "{} does not read the UCX address that was sent to it; {}",
         describe_(peer), kAdvice);
  fail_of_end(peer);
}

void UcxWire::fail_of_end(int peer) const {
  fail(ErrorCode::kPeerLost, "{} ended while UCX was set up; see its output", describe_(peer));
}

void UcxWire::read_all(int peer, std::span<std::byte> bytes, Deadline deadline) {
  for (Vigil vigil; !bytes.empty();) {
    const ssize_t got = sockets_->receive(peer, Channel::kData, bytes);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0 || !would_block(errno)) {
      fail_of_end(peer);
    } else {
      Interest interest{peer, Channel::kData, POLLIN};
      sockets_->wait({&interest, 1}, 50ms);
    }
    if (vigil.sees_passed(deadline))
      fail(ErrorCode::kTimeout, "{} did not send its UCX address; {}", describe_(peer), kAdvice);
  }
}

Worker* UcxWire::worker(int peer, Channel channel) const {
  if (channel == Channel::kControl) return nullptr;
  const auto& owner = channel == Channel::kData ? data_ : point_to_point_;
  const bool is_remote = std::find(remote_.begin(), remote_.end(), peer) != remote_.end();
  return is_remote ? owner.get() : nullptr;
}

ssize_t UcxWire::send(int peer, Channel channel, std::span<const std::byte> head,
                      std::span<const std::byte> rest) {
  Worker* const ucx = worker(peer, channel);
  return ucx != nullptr ? ucx->send(peer, head, rest) : sockets_->send(peer, channel, head, rest);
}

ssize_t UcxWire::receive(int peer, Channel channel, std::span<std::byte> into) {
  Worker* const ucx = worker(peer, channel);
  return ucx != nullptr ? ucx->receive(peer, into) : sockets_->receive(peer, channel, into);
}

ssize_t UcxWire::peek(int peer, Channel channel, std::span<std::byte> into) {
  Worker* const ucx = worker(peer, channel);
  return ucx != nullptr ? ucx->peek(peer, into) : sockets_->peek(peer, channel, into);
}

int UcxWire::socket(int peer, Channel channel) const {
  return worker(peer, channel) != nullptr ? -1 : sockets_->socket(peer, channel);
}

void UcxWire::wait(std::span<Interest> interests, std::chrono::milliseconds limit) {
  wait_for(interests, limit, false);
}

void UcxWire::wait_or_wake(std::span<Interest> interests,
                           std::optional<std::chrono::milliseconds> limit) {
  wait_for(interests, limit, true);
}

// Clears the worker's news descriptor, then checks the channels, then sleeps. An event after the
// check makes the descriptor readable again, which ends the sleep.
void UcxWire::wait_for(std::span<Interest> interests,
                       std::optional<std::chrono::milliseconds> limit, bool wakeable) {
  Worker* used = nullptr;
  for (const Interest& interest : interests) {
    if (Worker* const ucx = worker(interest.peer, interest.channel)) used = ucx;
  }
  if (used != nullptr) used->forget_news();
  std::vector<pollfd> entries{{wakeable ? sockets_->wakeup() : -1, POLLIN, 0}};
  bool is_ready = false;
  for (Interest& interest : interests) {
    Worker* const ucx = worker(interest.peer, interest.channel);
    const int fd = ucx != nullptr ? -1 : sockets_->socket(interest.peer, interest.channel);
    entries.push_back({fd, interest.events, 0});
    interest.is_ready = ucx != nullptr && ucx->is_ready(interest.peer, interest.events);
    is_ready |= interest.is_ready;
  }
  if (used != nullptr) entries.push_back({used->news(), POLLIN, 0});
  auto most = limit.value_or(-1ms);
  if (used != nullptr && (!limit || most > kLongestSleep)) most = kLongestSleep;
  poll_for(entries, is_ready ? 0ms : most);
  for (std::size_t i = 0; i < interests.size(); ++i) {
    interests[i].is_ready |= entries[i + 1].revents != 0;
  }
  if (wakeable) sockets_->forget_wakeup();
}

void UcxWire::cancel(Channel channel) {
  if (channel == Channel::kData) data_->give_up_sends();
  if (channel == Channel::kPointToPoint) point_to_point_->give_up_sends();
}

void UcxWire::linger() {
  const auto deadline = Deadline::after(kLingerLimit);
  for (const int peer : remote_) {
    send_whole(*sockets_, peer, Channel::kData, {&kFarewell, 1}, deadline);
  }
  for (const int peer : remote_) {
    std::array<std::byte, 1> farewell;
    while (sockets_->receive(peer, Channel::kData, farewell) < 0 && would_block(errno) &&
           !deadline.expired()) {
      Interest interest{peer, Channel::kData, POLLIN};
      sockets_->wait({&interest, 1}, 10ms);
    }
  }
}

}  // namespace paceline::ucx

namespace paceline {
namespace {

using ucx::Api;

constexpr const char* kHowToGetIt = "apt install libucx0";

// True for InfiniBand and RoCE; UCX's other network transport is TCP.
bool is_rdma(const uct_tl_resource_desc_t& resource) {
  return resource.dev_type == UCT_DEVICE_TYPE_NET && std::strcmp(resource.tl_name, "tcp") != 0;
}

void add_devices(const Api& api, uct_component_h component, const char* memory_domain,
                 std::set<std::string>& devices) {
  uct_md_config_t* config = nullptr;
  if (api.uct_md_config_read(component, nullptr, nullptr, &config) != UCS_OK) return;
  uct_md_h domain = nullptr;
  const ucs_status_t status = api.uct_md_open(component, memory_domain, config, &domain);
  api.uct_config_release(config);
  if (status != UCS_OK) return;
  uct_tl_resource_desc_t* resources = nullptr;
  unsigned count = 0;
  if (api.uct_md_query_tl_resources(domain, &resources, &count) == UCS_OK) {
    for (unsigned i = 0; i < count; ++i) {
      if (is_rdma(resources[i])) devices.insert(resources[i].dev_name);
    }
    api.uct_release_tl_resource_list(resources);
  }
  api.uct_md_close(domain);
}

std::vector<std::string> find_rdma_devices(const Api& api) {
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (api.uct_query_components(&components, &count) != UCS_OK) return {};
  std::set<std::string> devices;
  for (unsigned i = 0; i < count; ++i) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
    if (api.uct_component_query(components[i], &attributes) != UCS_OK) continue;
    std::vector<uct_md_resource_desc_t> domains(attributes.md_resource_count);
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    attributes.md_resources = domains.data();
    if (api.uct_component_query(components[i], &attributes) != UCS_OK) continue;
    for (const auto& domain : domains) add_devices(api, components[i], domain.md_name, devices);
  }
  api.uct_release_component_list(components);
  return {devices.begin(), devices.end()};
}

}  // namespace

UcxInfo ucx_info() {
  std::string why;
  const Api* const api = Api::load(&why);
  if (api == nullptr) return {.text = why, .advice = kHowToGetIt, .rdma_devices = {}};
  return {.available = true,
          .text = fmt::format("UCX {}", api->ucp_get_version_string()),
          .advice = "",
          .rdma_devices = find_rdma_devices(*api)};
}

std::unique_ptr<Wire> over_ucx(std::unique_ptr<SocketWire>& sockets, const std::vector<int>& remote,
                               const DescribeRank& describe, Deadline deadline) {
  std::string why;
  const Api* const api = Api::load(&why);
  if (api == nullptr) {
    fail(ErrorCode::kUnsupported, "transport ucx is not available: {}; to get it: {}", why,
         kHowToGetIt);
  }
  auto wire = std::make_unique<ucx::UcxWire>(*api, *sockets, remote, describe, deadline);
  wire->own(std::move(sockets));
  return wire;
}

}  // namespace paceline
