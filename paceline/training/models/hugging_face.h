#pragma once

// Converts weights from and to the names and shapes of Hugging Face's transformers, as saved by
// GPT2LMHeadModel and BertForMaskedLM, with or without the prefixes "transformer." and "bert.".
// training/train/checkpoints/weights_file.h reads and writes the files.
//
// Each tensor of a file is loaded or checked as in this table:
//
//   a weight of the model                            loaded; floating point of any width
//   a copy of a tied weight (lm_head.weight,         must be equal; if the file has only the copy,
//     cls.predictions.decoder.*)                     it is loaded
//   masks and position numbers (attn.bias,           must have the values that the model computes
//     attn.masked_bias, position_ids)
//   BERT's other head (bert.pooler.*,                left out; a warning names these tensors
//     cls.seq_relationship.*)
//   anything else                                    an error
//
// Thread safety: same as the model.

#include <cstdint>
#include <map>
#include <string>

#include "paceline/training/models/bert.h"
#include "paceline/training/models/gpt.h"

namespace paceline::models {

// `vocabulary`, in all functions: the tokens of the file; 0: as many as the model has. A model may
// have more tokens, for instance 50,304 instead of GPT-2's 50,257. Loading gives the
// additional tokens the mean of the file's weights, so that none of them is ever more probable
// than the file's tokens are on average; saving leaves the additional tokens out.

// Loads the weights into the model. Error(kInvalid), which lists up to 8 tensors that are missing,
// have another shape, are not floating point, differ from the tensor to which they are tied, or do
// not belong to the model; no weight has then been loaded. kUnsupported as in to_hugging_face().
void load_hugging_face(Gpt& model, const StateDict& weights, std::int64_t vocabulary = 0);
void load_hugging_face(Bert& model, const StateDict& weights, std::int64_t vocabulary = 0);

// Returns copies of the weights. Error(kUnsupported) for a model with rotary positions or fewer
// heads of keys and values, which GPT-2's format cannot represent.
StateDict to_hugging_face(Gpt& model, std::int64_t vocabulary = 0);
StateDict to_hugging_face(Bert& model, std::int64_t vocabulary = 0);

// As above, for whole weights, or some of them, under the model's own names, as returned by
// full_state_dict() and gather_stages(). Error(kInvalid) for a name that such a model does not
// have.
StateDict to_hugging_face(const GptOptions& model, const StateDict& weights,
                          std::int64_t vocabulary = 0);
StateDict to_hugging_face(const BertOptions& model, const StateDict& weights,
                          std::int64_t vocabulary = 0);

}  // namespace paceline::models
