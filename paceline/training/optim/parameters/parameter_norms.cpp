#include "paceline/training/optim/parameters/parameter_norms.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {
// Each partial sum of a norm covers one block of a row.
static_assert(kBlock == FlatLayout::kBlock);

void ParameterNorms::lay_out(ProcessGroup* group) {
  group_ = group;
  const auto num_parts = static_cast<std::size_t>(rows_.division().num_parts);
  std::vector<std::size_t> used(num_parts);
  std::vector<std::vector<std::size_t>> parts(rows_.parameters().size());
  pieces_.assign(rows_.parameters().size(), {});
  for (const ParameterRows::Row& row : rows_.rows()) {
    for (const std::size_t i : row.parameters) {
      const std::int64_t offset = rows_.offset(i);
      const std::int64_t end = offset + rows_.parameters()[i].numel();
      for (std::int64_t at = offset; at < end;) {
        const std::int64_t block = row.layout.block();
        const std::int64_t next = std::min(end, (at / block + 1) * block);
        const auto part = static_cast<std::size_t>(at / row.layout.part_count());
        pieces_[i].push_back({at - offset, next - offset, used[part]++});
        parts[i].push_back(part);
        at = next;
      }
    }
  }
  const std::size_t slots_per_part = std::ranges::max(used);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    for (std::size_t piece = 0; piece < pieces_[i].size(); ++piece)
      pieces_[i][piece].slot += parts[i][piece] * slots_per_part;
  }
  const auto slots = static_cast<std::int64_t>(num_parts * slots_per_part);
  sums_ = group != nullptr ? empty_symmetric(*group, {slots, 2}, at::kDouble)
                           : at::zeros({slots, 2}, at::kDouble);
}

void ParameterNorms::divide(std::vector<std::size_t> parameters,
                            std::shared_ptr<ProcessGroup> layers) {
  divided_ = std::move(parameters);
  divided_sums_.assign(2 * divided_.size(), 0.0);
  layers_ = std::move(layers);
}

std::span<const ParameterNorms::Piece> ParameterNorms::own_pieces(std::size_t parameter) const {
  const auto [first, last] = rows_.own_elements(parameter);
  if (first >= last) return {};
  const auto& pieces = pieces_[parameter];
  return {std::ranges::lower_bound(pieces, first, {}, &Piece::begin),
          std::ranges::lower_bound(pieces, last, {}, &Piece::begin)};
}

void ParameterNorms::set(const Piece& piece, const NormPair& squares) {
  std::ranges::copy(squares, sums_.data_ptr<double>() + 2 * piece.slot);
}

void ParameterNorms::exchange() {
  if (group_ != nullptr) {
    const std::int64_t slots = sums_.size(0) / group_->world_size();
    const at::Tensor own = sums_.narrow(0, group_->rank() * slots, slots);
    group_->all_gather(dense_cpu_view(sums_), dense_cpu_view(own));
  }
  if (divided_.empty()) return;
  for (std::size_t i = 0; i < divided_.size(); ++i) {
    const NormPair own = squares_of(divided_[i]);
    std::ranges::copy(own, divided_sums_.begin() + static_cast<std::ptrdiff_t>(2 * i));
  }
  layers_->all_reduce(std::span(divided_sums_), ReduceOp::kSum);
}

// Returns the sums over the elements of the parameter that this rank, or its group, has.
NormPair ParameterNorms::squares_of(std::size_t parameter) const {
  NormPair sums{};
  const auto* const all = sums_.data_ptr<double>();
  for (const Piece& piece : pieces_[parameter]) {
    sums[0] += all[2 * piece.slot];
    sums[1] += all[2 * piece.slot + 1];
  }
  return sums;
}

NormPair ParameterNorms::of(std::size_t parameter) const {
  const auto divided = std::ranges::lower_bound(divided_, parameter);
  NormPair sums{};
  if (divided != divided_.end() && *divided == parameter) {
    const auto place = 2 * (divided - divided_.begin());
    std::copy_n(divided_sums_.begin() + place, 2, sums.begin());
  } else {
    sums = squares_of(parameter);
  }
  return {std::sqrt(sums[0]), std::sqrt(sums[1])};
}

}  // namespace paceline::optim
