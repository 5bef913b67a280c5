#include "tests/harness/simulated_cuda/memory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/mman.h>

namespace paceline::simulated {

namespace {

constexpr std::size_t kPage = 4096;

struct Block {
  Stream* stream = nullptr;
  std::size_t bytes = 0;  // a number of whole pages
  int num_opened = 0;
  std::vector<Stream*> used_on;  // other streams that use it (use_on())
};

// The initial memory limit of each device in bytes; 0: no limit.
std::size_t given_limit() {
  const char* const text = std::getenv("PACELINE_SIMULATED_CUDA_MEMORY");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

struct PerDevice {
  std::size_t live = 0, peak = 0, limit = given_limit(), largest = 0;
};

struct Memory {
  std::mutex mutex;  // guards the members
  std::map<char*, Block> blocks;
  // Released blocks, by stream and size.
  std::map<std::pair<Stream*, std::size_t>, std::vector<char*>> free;
  std::array<PerDevice, kMaxDevices> devices;
  std::map<const char*, std::size_t> pinned;

  PerDevice& of(int device) { return devices.at(static_cast<std::size_t>(device)); }
  // Returns the block that contains the pointer, or null.
  std::pair<char* const, Block>* find(const void* pointer) {
    auto next = blocks.upper_bound(const_cast<char*>(static_cast<const char*>(pointer)));
    if (next == blocks.begin()) return nullptr;
    --next;
    return static_cast<const char*>(pointer) < next->first + next->second.bytes ? &*next : nullptr;
  }
};
Memory& memory() {
  static auto* const all = new Memory;
  return *all;
}

void* map_pages(std::size_t bytes, int protection) {
  void* const pages = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages != MAP_FAILED) return pages;
  std::perror("the simulated device: mmap");
  std::abort();
}

void protect(void* pages, std::size_t bytes, int protection) {
  if (mprotect(pages, bytes, protection) == 0) return;
  std::perror("the simulated device: mprotect");
  std::abort();
}

std::size_t whole_pages(std::size_t bytes) {
  return std::max((bytes + kPage - 1) / kPage, std::size_t{1}) * kPage;
}

}  // namespace

void* allocate(Stream& stream, std::size_t bytes) {
  const std::size_t size = whole_pages(bytes);
  count_touch(stream.device());
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  PerDevice& device = all.of(stream.device());
  if (device.limit > 0 && device.live + size > device.limit) return nullptr;
  if (device.largest > 0 && size > device.largest) return nullptr;
  device.live += size;
  device.peak = std::max(device.peak, device.live);
  auto& free = all.free[{&stream, size}];
  if (!free.empty()) {
    char* const reused = free.back();
    free.pop_back();
    return reused;
  }
  auto* const fresh = static_cast<char*>(map_pages(size, PROT_NONE));
  all.blocks[fresh] = {.stream = &stream, .bytes = size, .used_on = {}};
  return fresh;
}

void release(void* pointer) {
  auto* const block = static_cast<char*>(pointer);
  Memory& all = memory();
  Stream* stream = nullptr;
  std::size_t bytes = 0;
  std::vector<Stream*> used_on;
  {
    const std::lock_guard lock(all.mutex);
    Block& found = all.blocks.at(block);
    stream = found.stream;
    bytes = found.bytes;
    used_on.swap(found.used_on);
    all.of(stream->device()).live -= bytes;
  }
  for (Stream* const other : used_on) {
    Event last_use;
    last_use.record(*other);
    last_use.block(*stream);
  }
  stream->push_mark([block, bytes] {
    const Opened opened(block);
    std::memset(block, 0xff, bytes);
  });
  const std::lock_guard lock(all.mutex);
  all.free[{stream, bytes}].push_back(block);
}

void use_on(const void* pointer, Stream& stream) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  if (auto* const found = all.find(pointer); found != nullptr)
    found->second.used_on.push_back(&stream);
}

std::size_t live_bytes(int device) {
  const std::lock_guard lock(memory().mutex);
  return memory().of(device).live;
}

std::size_t peak_bytes(int device) {
  const std::lock_guard lock(memory().mutex);
  return memory().of(device).peak;
}

void reset_peak(int device) {
  const std::lock_guard lock(memory().mutex);
  memory().of(device).peak = memory().of(device).live;
}

std::size_t memory_limit(int device) {
  const std::lock_guard lock(memory().mutex);
  return memory().of(device).limit;
}

void set_memory_limit(int device, std::size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  memory().of(device).limit = bytes;
}

void fail_allocations_above(int device, std::size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  memory().of(device).largest = bytes;
}

int device_of(const void* pointer) {
  const std::lock_guard lock(memory().mutex);
  const auto* const found = memory().find(pointer);
  return found == nullptr ? -1 : found->second.stream->device();
}

namespace {

// Adds `by` to the number of Opened objects of the block that contains the pointer, and opens or
// closes the block's pages accordingly. Returns the block's address, or null.
char* change_opened(const void* pointer, int by) {
  const std::lock_guard lock(memory().mutex);
  auto* const found = memory().find(pointer);
  if (found == nullptr) return nullptr;
  auto& [address, block] = *found;
  const bool was_open = block.num_opened > 0;
  block.num_opened += by;
  const bool is_open = block.num_opened > 0;
  if (was_open != is_open)
    protect(address, block.bytes, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
  return address;
}

}  // namespace

Opened::Opened(const void* pointer) : block_(change_opened(pointer, 1)) {}

Opened::~Opened() {
  if (block_ != nullptr) change_opened(block_, -1);
}

void* allocate_pinned(std::size_t bytes) {
  const std::size_t size = whole_pages(bytes);
  auto* const pages = static_cast<char*>(map_pages(size, PROT_READ | PROT_WRITE));
  const std::lock_guard lock(memory().mutex);
  memory().pinned[pages] = size;
  return pages;
}

void release_pinned(void* pointer) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  const auto found = all.pinned.find(static_cast<const char*>(pointer));
  munmap(pointer, found->second);
  all.pinned.erase(found);
}

bool is_pinned(const void* pointer) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  auto next = all.pinned.upper_bound(static_cast<const char*>(pointer));
  if (next == all.pinned.begin()) return false;
  --next;
  return static_cast<const char*>(pointer) < next->first + next->second;
}

}  // namespace paceline::simulated
