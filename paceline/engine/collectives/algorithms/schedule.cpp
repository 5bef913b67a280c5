#include "paceline/engine/collectives/algorithms/schedule.h"

#include <algorithm>
#include <map>

#include "paceline/engine/collectives/op_traits.h"

namespace paceline {
namespace {

std::vector<Block> in_a_row(std::span<const std::size_t> counts) {
  std::vector<Block> blocks;
  std::size_t offset = 0;
  for (const std::size_t count : counts) {
    blocks.push_back({offset, count});
    offset += count;
  }
  return blocks;
}

std::vector<Block> at_zero(std::span<const std::size_t> counts) {
  std::vector<Block> blocks;
  for (const std::size_t count : counts) blocks.push_back({0, count});
  return blocks;
}

BlockTable pairs(std::span<const std::size_t> counts, std::size_t world) {
  BlockTable table{std::vector<Block>(world * world), std::vector<Block>(world * world)};
  for (std::size_t rank = 0; rank < world; ++rank) {
    std::size_t given = 0;
    std::size_t placed = 0;
    for (std::size_t other = 0; other < world; ++other) {
      const std::size_t row = rank * world + other;
      const std::size_t column = other * world + rank;
      table.given[row] = {given, counts[row]};
      table.placed[column] = {placed, counts[column]};
      given += counts[row];
      placed += counts[column];
    }
  }
  return table;
}

}  // namespace

BlockTable BlockTable::of(const Collective& call, int world_size) {
  if (call.op == Op::kAllGatherV) return {at_zero(call.counts), in_a_row(call.counts)};
  if (call.op == Op::kReduceScatterV) return {in_a_row(call.counts), at_zero(call.counts)};
  return pairs(call.counts, static_cast<std::size_t>(world_size));
}

BlockTable BlockTable::piece(std::size_t begin, std::size_t most) const {
  BlockTable part = *this;
  for (std::size_t i = 0; i < part.given.size(); ++i) {
    Block& given = part.given[i];
    Block& placed = part.placed[i];
    given.count = placed.count = given.count > begin ? std::min(most, given.count - begin) : 0;
    given.offset += begin;
    placed.offset += begin;
  }
  return part;
}

Hosts Hosts::from(const std::vector<int>& host_of) {
  Hosts hosts;
  std::map<int, int> numbers;
  for (const int name : host_of) {
    const auto number = numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second;
    if (static_cast<std::size_t>(number) == hosts.members.size()) hosts.members.emplace_back();
    hosts.members[static_cast<std::size_t>(number)].push_back(hosts.world_size());
    hosts.host_of.push_back(number);
  }
  return hosts;
}

Hosts Hosts::blocks(int num_hosts, int ranks) {
  std::vector<int> host_of;
  for (int host = 0; host < num_hosts; ++host) {
    host_of.insert(host_of.end(), static_cast<std::size_t>(ranks), host);
  }
  return from(host_of);
}

bool Hosts::are_equal_blocks() const {
  const std::size_t ranks = host_of.size() / members.size();
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    if (static_cast<std::size_t>(host_of[rank]) != rank / ranks) return false;
  }
  return host_of.size() % members.size() == 0;
}

std::size_t Hosts::local_index(int rank) const {
  const auto& local = neighbours(rank);
  return static_cast<std::size_t>(std::lower_bound(local.begin(), local.end(), rank) -
                                  local.begin());
}

// The number of a block in the table of an operation with unequal counts.
std::size_t ScheduleSpec::block_number(int from, int to) const {
  const auto sender = static_cast<std::size_t>(from);
  const auto receiver = static_cast<std::size_t>(to);
  if (has_count_matrix(op)) return sender * static_cast<std::size_t>(world_size) + receiver;
  return gives_blocks(op) ? receiver : sender;
}

Block ScheduleSpec::given(int from, int to) const {
  if (has_counts(op)) return blocks->given[block_number(from, to)];
  return {gives_blocks(op) ? static_cast<std::size_t>(to) * input_stride : 0, count};
}

Block ScheduleSpec::placed(int from, int to) const {
  if (has_counts(op)) return blocks->placed[block_number(from, to)];
  return {gets_blocks(op) ? static_cast<std::size_t>(from) * output_stride : 0, count};
}

}  // namespace paceline
