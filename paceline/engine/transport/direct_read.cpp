#include "paceline/engine/transport/direct_read.h"

#include <bit>

#include <sys/uio.h>
#include <unistd.h>

namespace paceline {

void DirectRead::introduce(const std::uint64_t& token) {
  pid_ = getpid();
  token_at_ = std::bit_cast<std::uintptr_t>(&token);
  token_.store(token, std::memory_order_release);
}

void DirectRead::withdraw() {
  std::uint32_t expected = kOffered;
  offer_.compare_exchange_strong(expected, kWithdrawn);
}

void DirectRead::try_once() {
  if (reader_.load(std::memory_order_relaxed) != kUnknown) return;
  if (token_.load(std::memory_order_acquire) == 0) return;
  reader_.store(sees_token() ? kCan : kCannot, std::memory_order_release);
}

bool DirectRead::sees_token() const {
  std::uint64_t seen = 0;
  return read(token_at_, std::as_writable_bytes(std::span(&seen, 1))) == sizeof seen &&
         seen == token_.load(std::memory_order_relaxed);
}

ssize_t DirectRead::read(std::uint64_t address, std::span<std::byte> into) const {
  const iovec local = {into.data(), into.size()};
  const iovec remote = {std::bit_cast<void*>(static_cast<std::uintptr_t>(address)), into.size()};
  return process_vm_readv(static_cast<pid_t>(pid_), &local, 1, &remote, 1, 0);
}

DirectRead::End DirectRead::take() { return sees_token() ? end(kTaken) : refuse(true); }

DirectRead::End DirectRead::refuse(bool is_final) {
  if (is_final) reader_.store(kCannot, std::memory_order_release);
  return end(kRefused);
}

DirectRead::End DirectRead::end(Offer how) {
  std::uint32_t expected = kOffered;
  if (!offer_.compare_exchange_strong(expected, how)) return End::kWithdrawn;
  return how == kTaken ? End::kTaken : End::kRefused;
}

}  // namespace paceline
