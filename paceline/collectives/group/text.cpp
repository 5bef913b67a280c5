#include "paceline/collectives/group/text.h"

#include <algorithm>

namespace paceline {

std::string broadcast_text(ProcessGroup& group, const std::string& text, int root) {
  auto length = static_cast<std::int64_t>(text.size());
  group.broadcast(std::span(&length, 1), root);
  std::string result =
      group.rank() == root ? text : std::string(static_cast<std::size_t>(length), '\0');
  group.broadcast(Buffer(result.data(), result.size(), Dtype::kUint8), root);
  return result;
}

std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& text) {
  const auto length = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::span(&length, 1), std::span(lengths));
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::string padded = text;
  padded.resize(longest);
  std::string all(longest * lengths.size(), '\0');
  group.all_gather(ConstBuffer(padded.data(), padded.size(), Dtype::kUint8),
                   Buffer(all.data(), all.size(), Dtype::kUint8));
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    texts.push_back(all.substr(rank * longest, static_cast<std::size_t>(lengths[rank])));
  }
  return texts;
}

}  // namespace paceline
