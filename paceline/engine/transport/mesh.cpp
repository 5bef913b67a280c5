#include "paceline/engine/transport/mesh.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include <poll.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/transport/control_messages.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

namespace {

constexpr std::size_t kMaxPeerText = 4096;
constexpr std::uint32_t kMaxCpus = 65536;
constexpr std::uint32_t kMaxMembers = 1 << 20;

void put_numbers(ByteWriter& writer, const std::vector<int>& numbers) {
  writer.put(static_cast<std::uint32_t>(numbers.size()));
  for (const int number : numbers) writer.put(number);
}

std::vector<int> get_numbers(ByteReader& reader, std::uint32_t most, const char* what) {
  const auto count = reader.get<std::uint32_t>();
  if (count > most) {
    throw Error(ErrorCode::kCorrupt, std::string("a peer's address lists too many ") + what);
  }
  std::vector<int> numbers;
  for (std::uint32_t i = 0; i < count; ++i) numbers.push_back(reader.get<int>());
  return numbers;
}

}  // namespace

std::string PeerAddress::encode() const {
  ByteWriter writer;
  for (const auto* text : {&host, &process, &host_name, &unix_name, &tcp.host}) {
    writer.put_string(*text);
  }
  writer.put(tcp.port);
  writer.put(cipher);
  writer.put(transport);
  writer.put(static_cast<std::uint8_t>(tcp_streams));
  put_numbers(writer, cpus);
  put_numbers(writer, members);
  return to_string(std::span<const std::byte>(writer.bytes()));
}

PeerAddress PeerAddress::decode(const std::string& text) {
  ByteReader reader(as_bytes(text));
  PeerAddress peer;
  for (auto* field :
       {&peer.host, &peer.process, &peer.host_name, &peer.unix_name, &peer.tcp.host}) {
    *field = reader.get_string(kMaxPeerText);
  }
  peer.tcp.port = reader.get<std::uint16_t>();
  peer.cipher = reader.get<CipherKind>();
  if (peer.cipher > CipherKind::kAes256Gcm) {
    throw Error(ErrorCode::kCorrupt, "a peer's address names no known cipher");
  }
  peer.transport = reader.get<TransportKind>();
  if (peer.transport > TransportKind::kUcx) {
    throw Error(ErrorCode::kCorrupt, "a peer's address names no known transport");
  }
  peer.tcp_streams = reader.get<std::uint8_t>();
  if (peer.tcp_streams < 1 || peer.tcp_streams > kMaxStreams) {
    throw Error(ErrorCode::kCorrupt, "a peer's address has an invalid number of TCP streams");
  }
  peer.cpus = get_numbers(reader, kMaxCpus, "processors");
  peer.members = get_numbers(reader, kMaxMembers, "members");
  if (reader.remaining() > 0) throw Error(ErrorCode::kCorrupt, "a peer's address is too long");
  return peer;
}

namespace {

// Room for answers that arrive before a notice, in the same read.
constexpr std::size_t kRoomForAnswers = 1024;
// How long sending a control message may take. Any channel's buffer has room for such a message.
constexpr std::chrono::seconds kLongestWords{1};
constexpr std::chrono::milliseconds kControlSlice{10};
// The most bytes that may wait to be sent to one peer: many times the bytes that a rank sends
// before it gives up.
constexpr std::size_t kMaxUnsent = 64 << 10;

}  // namespace

Mesh::Mesh(std::string name, int rank, std::vector<PeerAddress> peers, std::unique_ptr<Wire> wire,
           std::vector<int> members)
    : name_(std::move(name)),
      rank_(rank),
      members_(std::move(members)),
      self_(name_of(rank)),
      peers_(std::move(peers)),
      wire_(std::move(wire)),
      neighbours_(find_neighbours()),
      oversubscribed_(count_oversubscription()),
      inquiry_(world_size()),
      unsent_(peers_.size()) {}

Mesh::~Mesh() {
  if (domain_) domain_->remove(*this);
  if (!failed() && owner_.is_this()) {
    const std::lock_guard lock(mutex_);
    send_to_all(encode_goodbye());
  }
}

std::vector<int> Mesh::find_neighbours() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (peer(rank).host == peer(rank_).host) ranks.push_back(rank);
  }
  return ranks;
}

bool Mesh::count_oversubscription() const {
  std::set<int> cpus;
  for (const int rank : neighbours_) cpus.insert(peer(rank).cpus.begin(), peer(rank).cpus.end());
  return neighbours_.size() > cpus.size();
}

std::string Mesh::describe(int rank) const {
  return rank_name(rank, in_world(rank), peer(rank).host_name);
}

int Mesh::in_world(int rank) const {
  return members_.empty() ? rank : members_[static_cast<std::size_t>(rank)];
}

std::vector<int> Mesh::in_world(std::vector<int> ranks) const {
  for (int& rank : ranks) rank = in_world(rank);
  return ranks;
}

std::string Mesh::name_of(int rank) const { return rank_name(rank, in_world(rank)); }

void Mesh::set_failure(Error failure) {
  failure_ = std::move(failure);
  has_failed_->store(true, std::memory_order_relaxed);
}

void Mesh::fail_and_tell(Error cause) {
  send_to_all(encode_notice(cause));
  set_failure(std::move(cause));
}

bool Mesh::has_left(int peer) const {
  return std::find(left_.begin(), left_.end(), peer) != left_.end();
}

std::vector<int> Mesh::throw_if_failed() {
  std::unique_lock lock(mutex_);
  if (!failure_) poll_control();
  if (failure_) throw_failure(std::move(lock));
  return left_;
}

// Tells the rank's other groups first, so that their ranks learn the cause before they see this
// rank leave.
void Mesh::throw_failure(std::unique_lock<std::mutex> lock) {
  const Error failure = failure_->reworded(std::string(failure_->what()));
  const bool news = !std::exchange(told_domain_, true);
  lock.unlock();
  if (news && domain_) domain_->tell(*this, failure.what());
  throw failure.reworded(std::string(failure.what()));
}

void Mesh::join(std::shared_ptr<FailureDomain> domain) {
  domain_ = std::move(domain);
  domain_->add(*this);
}

void Mesh::foretell(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failure_ || std::exchange(foretold_, true)) return;
  send_to_all(Inquiry::encode_reason(why));
}

void Mesh::throw_lost(int peer, const std::string& how) {
  std::unique_lock lock(mutex_);
  // The peer's notice uses the control channel, and may arrive after another channel has closed.
  const auto deadline = Deadline::after(kLongestWords);
  do {
    if (failure_) break;
    auto interests = control_interests();
    lock.unlock();
    wire_->wait(interests, kControlSlice);
    lock.lock();
    if (!failure_) hear(interests);
  } while (!failure_ && !has_left(peer) && !deadline.expired());
  if (!failure_) fail_and_tell(lost(peer, has_left(peer) ? "has left the group" : how));
  throw_failure(std::move(lock));
}

void Mesh::abort(const Error& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    fail_and_tell(cause);
    told_domain_ = true;
  }
  if (domain_) domain_->tell(*this, cause.what());
}

void Mesh::ask_peers() {
  const std::lock_guard lock(mutex_);
  inquiry_.forget_answers();
  if (!failure_) send_to_all(Inquiry::encode_question());
}

std::optional<std::vector<Awaited>> Mesh::answer_of(int peer) const {
  const std::lock_guard lock(mutex_);
  return inquiry_.answer_of(peer);
}

void Mesh::answer(std::span<const Awaited> awaited) {
  const std::lock_guard lock(mutex_);
  is_asked_.store(false, std::memory_order_relaxed);
  const std::string text = Inquiry::encode_answer(awaited);
  for (const int peer : inquiry_.take_askers()) {
    if (!failure_) say_to(peer, text, Deadline::after(kLongestWords));
  }
}

ssize_t Mesh::receive(int peer, Channel channel, std::span<std::byte> into) const {
  const ssize_t got = wire_->receive(peer, channel, into);
  if (got < 0 && errno == EBADMSG) {
    fail(ErrorCode::kCorrupt,
         "{}: bytes from {} are not those that it sent: they were changed in transit", self_,
         describe(peer));
  }
  if (got < 0) throw_if_own(errno, peer, "receiving from");
  return got;
}

void Mesh::throw_if_own(int error, int peer, const char* what) const {
  switch (error) {
    case EFAULT:
    case EINVAL:
    case EBADF:
    case ENOTSOCK:
    case EOPNOTSUPP:
    case EMSGSIZE:
    case ENOMEM:
    case ENOBUFS:
      throw system_error(fmt::format("{}: {} {}{}", self_, what, describe(peer),
                                     error == EFAULT ? " with a buffer that is not mapped" : ""),
                         error);
    default:
      return;
  }
}

// Sends a control message. If a peer does not read it in time, the unsent bytes are kept and sent
// before the next message: a message that was begun must be finished, or the peer cannot parse the
// bytes that follow, and an encrypted channel insists on the same bytes. Errors are ignored,
// because they mean that the peer has ended.
void Mesh::say_to(int peer, std::string_view words, Deadline deadline) {
  std::string& unsent = unsent_[static_cast<std::size_t>(peer)];
  if (unsent.size() + words.size() > kMaxUnsent) return;
  unsent.append(words);
  unsent.erase(0, send_until(*wire_, peer, Channel::kControl, as_bytes(unsent), deadline));
}

void Mesh::send_to_all(const std::string& notice) {
  const auto deadline = Deadline::after(kLongestWords);
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank_) say_to(peer, notice, deadline);
  }
}

void Mesh::poll_control() {
  if (!wire_->may_have_news()) return;
  auto interests = control_interests();
  if (interests.empty()) return;
  wire_->wait(interests, {});
  hear(interests);
}

std::vector<Interest> Mesh::control_interests() const {
  std::vector<Interest> interests;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_ || has_left(peer)) continue;
    interests.push_back({peer, Channel::kControl, POLLIN});
  }
  return interests;
}

// If one poll finds several events, a notice takes precedence over the mere end of a connection,
// because the sender of the notice knows more. Among several ends, a rank that gave no reason takes
// precedence over a rank that gave one. Another thread may have read a peer's goodbye since the
// interests were made.
void Mesh::hear(std::span<const Interest> interests) {
  std::optional<std::pair<int, std::string>> ended;
  for (const Interest& interest : interests) {
    if (!interest.is_ready || has_left(interest.peer)) continue;
    std::string how = read_control(interest.peer);
    if (how.empty()) continue;
    const bool follows = !inquiry_.reason_of(interest.peer).empty();
    if (!ended || (!follows && !inquiry_.reason_of(ended->first).empty())) {
      ended.emplace(interest.peer, std::move(how));
    }
  }
  if (ended && !failure_) fail_and_tell(lost(ended->first, ended->second));
}

// Reads questions and answers until no more have arrived, or until a notice.
std::string Mesh::read_control(int peer) {
  for (;;) {
    std::array<char, kMaxNoticeBytes + kRoomForAnswers> buffer;
    const ssize_t got =
        wire_->receive(peer, Channel::kControl, std::as_writable_bytes(std::span(buffer)));
    if (got < 0 && would_block(errno)) return {};
    if (got < 0 && errno == EBADMSG)
      return "is gone: its connection carried bytes that were not encrypted with its key";
    if (got < 0 && errno != ECONNRESET) {
      return fmt::format("is gone: its host does not answer ({})", std::strerror(errno));
    }
    if (got <= 0) return "is gone: its process ended without leaving the group";
    const std::string notice =
        inquiry_.take(peer, std::string_view(buffer.data(), static_cast<std::size_t>(got)));
    if (inquiry_.is_asked()) is_asked_.store(true, std::memory_order_relaxed);
    if (notice.empty()) continue;
    take_notice(peer, notice);
    return {};
  }
}

void Mesh::take_notice(int peer, const std::string& bytes) {
  const auto notice = decode_notice(bytes);
  if (notice && notice->goodbye) {
    left_.push_back(peer);
    return;
  }
  // Pass the notice on before this rank leaves, because a peer may see this rank leave before the
  // original notice arrives.
  send_to_all(bytes);
  // After a death every rank needs a new group, so the code kPeerLost is kept. Any other failure
  // belongs to the rank that reported it.
  const bool somebody_died = notice && notice->code == ErrorCode::kPeerLost;
  set_failure(Error(
      somebody_died ? ErrorCode::kPeerLost : ErrorCode::kAborted,
      fmt::format("{}: group {} was aborted by {}: {}", self_, name_, describe(peer),
                  notice ? notice->text : "(its notice cannot be read)"),
      {.group = name_,
       .ranks = notice && !notice->ranks.empty() ? notice->ranks : std::vector{in_world(peer)}}));
}

Error Mesh::lost(int peer, const std::string& how) const {
  const std::string reason = inquiry_.reason_of(peer);
  return Error(
      ErrorCode::kPeerLost,
      fmt::format("{}: {} of group {} {}{}; see the output of rank {}", self_, describe(peer),
                  name_, how, reason.empty() ? "" : " (" + reason + ")", in_world(peer)),
      {.group = name_, .ranks = {in_world(peer)}});
}

}  // namespace paceline
