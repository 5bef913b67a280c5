#include "paceline/training/data/streamed_dataset.h"

#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/files/images/sample_random.h"

namespace paceline::data {
namespace {

class WindowShuffle : public RecordReader {
 public:
  WindowShuffle(std::unique_ptr<RecordReader> reader, std::int64_t window, std::uint64_t seed,
                std::int64_t epoch)
      : reader_(std::move(reader)), window_(window), seed_(seed), epoch_(epoch) {
    check(window > 0, "a stream's window of {} records to shuffle", window);
  }

  std::optional<StreamedRecord> next() override {
    if (next_ == records_.size()) fill();
    if (records_.empty()) return {};
    return std::move(records_[next_++]);
  }

  // Whole windows are left out before they are read into memory.
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    if (next_ == records_.size()) {
      const std::int64_t whole = count / window_;
      skipped = reader_->skip(whole * window_);
      windows_ += whole;
    }
    while (skipped < count && next()) ++skipped;
    return skipped;
  }

 private:
  void fill() {
    records_.clear();
    next_ = 0;
    while (std::ssize(records_) < window_) {
      auto record = reader_->next();
      if (!record) break;
      records_.push_back(std::move(*record));
    }
    images::SampleRandom random(seed_, epoch_, windows_++);
    for (std::int64_t i = std::ssize(records_) - 1; i > 0; --i) {  // Fisher and Yates
      std::swap(records_[static_cast<std::size_t>(i)],
                records_[static_cast<std::size_t>(random.below(i + 1))]);
    }
  }

  const std::unique_ptr<RecordReader> reader_;
  const std::int64_t window_;
  const std::uint64_t seed_;
  const std::int64_t epoch_;
  std::int64_t windows_ = 0;  // read or left out
  std::vector<StreamedRecord> records_;
  std::size_t next_ = 0;
};

}  // namespace

std::int64_t RecordReader::skip(std::int64_t count) {
  std::int64_t skipped = 0;
  while (skipped < count && next()) ++skipped;
  return skipped;
}

std::unique_ptr<RecordReader> shuffled_in_windows(std::unique_ptr<RecordReader> reader,
                                                  std::int64_t window, std::uint64_t seed,
                                                  std::int64_t epoch) {
  return std::make_unique<WindowShuffle>(std::move(reader), window, seed, epoch);
}

}  // namespace paceline::data
