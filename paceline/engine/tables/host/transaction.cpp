#include "paceline/engine/tables/host/transaction.h"

#include <bit>
#include <cstring>

namespace paceline::tables {

namespace {

constexpr std::uint64_t kNumber = 4;  // the phase is below it

std::uint64_t word_of(JournalPhase phase, std::uint64_t before) {
  return before / kNumber * kNumber + static_cast<std::uint64_t>(phase);
}

}  // namespace

Transaction::Transaction(const TableAccess& access)
    : access_(access), journal_(access.memory->journal(access.index)) {
  journal_.num_writes = 0;
  journal_.version_at = 0;
  journal_.image_at = 0;
}

void Transaction::add(const void* place, std::uint64_t value, std::uint32_t bytes) {
  journal_.writes[journal_.num_writes++] = {
      .at = access_.memory->offset_of(place), .value = value, .bytes = bytes};
}

void Transaction::changes(Entry& entry) {
  journal_.version_at = access_.memory->offset_of(&entry.version);
  journal_.version = entry.version.load(std::memory_order_relaxed) | 1;
}

float* Transaction::image_of(std::uint32_t data) {
  journal_.image_at = access_.memory->offset_of(access_.memory->data(data));
  return access_.memory->journal_image(access_.index);
}

void Transaction::commit() {
  std::uint64_t phase = journal_.phase.load(std::memory_order_relaxed);
  if (phase % kNumber != static_cast<std::uint64_t>(JournalPhase::kIdle) ||
      !journal_.phase.compare_exchange_strong(phase, word_of(JournalPhase::kCommitted, phase)))
    access_.was_revoked();
  apply_journal(*access_.memory, access_.index);
  end_transaction(journal_);
}

void apply_journal(const TableMemory& memory, std::uint32_t worker) {
  const Journal& journal = memory.journal(worker);
  Word* const version = journal.version_at == 0 ? nullptr : memory.at<Word>(journal.version_at);
  if (version != nullptr) {
    version->store(journal.version, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  if (journal.image_at != 0) {
    auto* const to = memory.at<LongWord>(journal.image_at);
    const float* const from = memory.journal_image(worker);
    const std::size_t count = memory.layout().row_floats / 2;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t pair;
      std::memcpy(&pair, from + 2 * i, sizeof pair);
      to[i].store(pair, std::memory_order_relaxed);
    }
  }
  for (std::uint32_t i = 0; i < journal.num_writes; ++i) {
    const JournalWrite& write = journal.writes[i];
    if (write.bytes == sizeof(Word)) {
      memory.at<Word>(write.at)->store(static_cast<std::uint32_t>(write.value),
                                       std::memory_order_release);
    } else {
      memory.at<LongWord>(write.at)->store(write.value, std::memory_order_release);
    }
  }
  if (version != nullptr) version->store(journal.version + 1, std::memory_order_release);
}

JournalPhase phase_of(const Journal& journal) {
  return static_cast<JournalPhase>(journal.phase.load() % kNumber);
}

void end_transaction(Journal& journal) {
  const std::uint64_t phase = journal.phase.load(std::memory_order_relaxed);
  journal.phase.store(word_of(JournalPhase::kIdle, phase + kNumber), std::memory_order_release);
}

bool revoke(Journal& journal) {
  std::uint64_t phase = journal.phase.load();
  while (phase % kNumber == static_cast<std::uint64_t>(JournalPhase::kIdle))
    if (journal.phase.compare_exchange_weak(phase, word_of(JournalPhase::kRevoked, phase)))
      return true;
  return phase % kNumber == static_cast<std::uint64_t>(JournalPhase::kRevoked);
}

}  // namespace paceline::tables
