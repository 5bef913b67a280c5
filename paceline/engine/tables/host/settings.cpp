#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "paceline/engine/core/check.h"
#include "paceline/engine/tables/host/row_update.h"
#include "paceline/engine/tables/host/table_layout.h"

namespace paceline::tables {

namespace {

constexpr std::uint64_t kMaxEntries = std::numeric_limits<std::uint32_t>::max() - 1;

constexpr const char* kOptimizers[] = {"SGD", "Adam", "Adagrad", "RowAdagrad"};

// Writes an optimizer's numbers. Throws Error(kInvalid) for numbers that no optimizer can have.
struct OptimizerNumbers {
  const std::string& table;
  Settings& settings;

  void operator()(const SGD& o) const {
    require(o.momentum >= 0 && o.momentum < 1 && o.weight_decay >= 0,
            "a momentum in [0, 1) and a weight decay of at least 0");
    settings.lr = o.lr;
    settings.optimizer_numbers = {o.momentum, o.weight_decay};
  }
  void operator()(const Adam& o) const {
    require(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1 && o.eps >= 0 &&
                o.weight_decay >= 0,
            "betas in [0, 1), and eps and a weight decay of at least 0");
    settings.lr = o.lr;
    settings.optimizer_numbers = {o.beta1, o.beta2, o.eps, o.weight_decay};
  }
  void operator()(const Adagrad& o) const {
    require(o.eps >= 0 && o.weight_decay >= 0, "eps and a weight decay of at least 0");
    settings.lr = o.lr;
    settings.optimizer_numbers = {o.eps, o.weight_decay};
  }
  void operator()(const RowAdagrad& o) const {
    require(o.eps >= 0, "eps of at least 0");
    settings.lr = o.lr;
    settings.optimizer_numbers = {o.eps};
  }
  void require(bool condition, const char* wanted) const {
    check(condition, "open_rows: table '{}': the optimizer needs {}", table, wanted);
  }
};

std::string number_text(double number) { return fmt::format("{}", number); }

}  // namespace

std::string optimizer_name(const Settings& settings) { return kOptimizers[settings.optimizer]; }

Consistency consistency_of(const Settings& settings) {
  switch (static_cast<Consistency::Kind>(settings.consistency)) {
    case Consistency::Kind::kSynchronous:
      return Consistency::synchronous();
    case Consistency::Kind::kBounded:
      return Consistency::bounded(settings.bound);
    case Consistency::Kind::kAsynchronous:
      break;
  }
  return Consistency::asynchronous();
}

std::string Consistency::text() const {
  switch (kind_) {
    case Kind::kSynchronous:
      return "synchronous";
    case Kind::kBounded:
      return fmt::format("bounded({})", bound_);
    case Kind::kAsynchronous:
      break;
  }
  return "asynchronous";
}

Settings Settings::of(const std::string& table, const RowOptions& options) {
  check(!table.empty() && table.size() <= 128, "open_rows: a table needs a name of 1 to 128 bytes");
  check(options.width >= 1 && options.width <= kMaxWidth,
        "open_rows: table '{}': the width must be 1 to {}, not {}", table, kMaxWidth,
        options.width);
  check(options.capacity >= 1 && options.capacity <= kMaxEntries,
        "open_rows: table '{}': the capacity must be 1 to {} rows, not {}", table, kMaxEntries,
        options.capacity);
  check(options.admit_after >= 1, "open_rows: table '{}': admit_after must be at least 1", table);
  const std::uint64_t candidates = options.admit_after > 1 ? options.candidates : 0;
  check(candidates <= kMaxEntries - options.capacity,
        "open_rows: table '{}': capacity and candidates are more than {} together", table,
        kMaxEntries);
  check(std::isfinite(options.initial_range) && options.initial_range >= 0,
        "open_rows: table '{}': initial_range must be finite and at least 0", table);
  Settings settings{.width = options.width,
                    .optimizer = static_cast<std::uint32_t>(options.optimizer.index()),
                    .consistency = static_cast<std::uint32_t>(options.consistency.kind()),
                    .bound = options.consistency.bound(),
                    .capacity = options.capacity,
                    .seed = options.seed,
                    .candidates = candidates,
                    .expire_after = options.expire_after,
                    .admit_after = options.admit_after,
                    .initial_range = options.initial_range};
  std::visit(OptimizerNumbers{table, settings}, options.optimizer);
  check(std::isfinite(settings.lr), "open_rows: table '{}': the learning rate must be finite",
        table);
  return settings;
}

std::string Settings::difference(const Settings& other) const {
  const auto differ = [](std::string_view name, auto here, auto there) {
    return here == there ? std::string()
                         : fmt::format("{} is {} here and {} there", name, here, there);
  };
  std::string found;
  const auto add = [&](std::string text) {
    if (found.empty()) found = std::move(text);
  };
  add(differ("width", width, other.width));
  add(differ("optimizer", optimizer_name(*this), optimizer_name(other)));
  for (std::size_t i = 0; i < optimizer_numbers.size(); ++i)
    add(differ(fmt::format("number {} of the optimizer", i + 1), optimizer_numbers[i],
               other.optimizer_numbers[i]));
  add(differ("lr", number_text(lr), number_text(other.lr)));
  add(differ("consistency", consistency_of(*this).text(), consistency_of(other).text()));
  add(differ("capacity", capacity, other.capacity));
  add(differ("seed", seed, other.seed));
  add(differ("candidates", candidates, other.candidates));
  add(differ("expire_after", expire_after, other.expire_after));
  add(differ("admit_after", admit_after, other.admit_after));
  add(differ("initial_range", initial_range, other.initial_range));
  return found;
}

TableLayout::TableLayout(const Settings& settings) {
  constexpr std::size_t kPage = 4096;
  const auto up = [](std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; };
  row_floats = static_cast<std::uint32_t>(up(floats_of_row(settings), 2));
  max_data = static_cast<std::uint32_t>(settings.capacity);
  max_entries = static_cast<std::uint32_t>(settings.capacity + settings.candidates);
  buckets_per_slot = std::max(4U, std::bit_ceil(2 * (max_entries / kNumSlots + 1)));
  const bool stages_pushes =
      settings.consistency == static_cast<std::uint32_t>(Consistency::Kind::kSynchronous);
  stage_rows = stages_pushes ? std::min(max_entries, 1U << 16) : 0;
  journal_bytes = up(sizeof(Journal) + row_floats * sizeof(float), 64);
  is_paired = settings.admit_after <= 1;
  data_bytes = row_floats * sizeof(float);
  entry_stride = sizeof(Entry) + (is_paired ? data_bytes : 0);
  data_stride = is_paired ? entry_stride : data_bytes;
  stage_bytes = up(stage_rows * (sizeof(Id) + settings.width * sizeof(float)), kPage);

  workers = up(sizeof(TableHeader), kPage);
  sessions = workers + kMaxWorkers * sizeof(WorkerSlot);
  slots = sessions + kMaxSessions * sizeof(SessionRecord);
  journals = slots + kNumSlots * sizeof(SlotState);
  buckets = up(journals + kMaxWorkers * journal_bytes, kPage);
  entries = up(buckets + std::size_t{kNumSlots} * buckets_per_slot * sizeof(Word), kPage);
  const std::size_t entries_end = entries + std::size_t{max_entries} * entry_stride;
  data = is_paired ? entries + sizeof(Entry) : up(entries_end, kPage);
  stages = up(is_paired ? entries_end : data + std::size_t{max_data} * data_stride, kPage);
  bytes = stages + kMaxWorkers * stage_bytes;
}

}  // namespace paceline::tables
