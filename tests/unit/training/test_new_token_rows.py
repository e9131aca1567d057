"""New tokens: their numbers, their first embeddings, and adapters that are saved with their rows alone."""

import pytest
import torch
from peft import get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from foretoken import LoraConfig, PrefixPropagationConfig, PromptTuningConfig
from foretoken.errors import ConfigError
from foretoken.training.model.adapter import attach
from foretoken.training.tokens.new_tokens import add_new_tokens, match_vocabulary, rows_alone, with_trained_rows

from support.tiny_generation import model_of, save_model, tokenizer_of


def added(family, tokens, **changes):
    model, tokenizer = model_of(family, **changes), tokenizer_of(family)
    before = model.get_input_embeddings().weight.detach().clone()
    numbers = add_new_tokens(model, tokenizer, tokens)
    return model, tokenizer, before, numbers


def row_of(model, number):
    return model.get_input_embeddings().weight[number]


class TestFirstValues:
    def test_a_row_starts_as_the_mean_of_the_words_in_its_name(self):
        model, tokenizer, before, numbers = added("gpt2", ["<subject>", "<copy_subject>", "<|?|>"])
        subject, copy = (before[tokenizer.convert_tokens_to_ids(word)] for word in ("subject", "copy"))
        assert numbers == [18, 19, 20]
        torch.testing.assert_close(row_of(model, 18), subject)
        torch.testing.assert_close(row_of(model, 19), (subject + copy) / 2)
        torch.testing.assert_close(row_of(model, 20), before.mean(0))
        assert torch.equal(model.get_input_embeddings().weight[:18], before)

    def test_the_output_is_the_same_table_where_it_was(self):
        model, *_ = added("bart", ["<subject>"])
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight

    def test_an_output_of_its_own_starts_from_its_own_words(self):
        model, tokenizer, _, numbers = added("llama", ["<subject>"])
        output = model.get_output_embeddings().weight
        torch.testing.assert_close(output[numbers[0]], output[tokenizer.convert_tokens_to_ids("subject")])

    def test_a_token_that_is_known_keeps_its_row(self):
        model, _, before, numbers = added("gpt2", ["word3", "<new>"])
        assert numbers == [7, 18]
        assert torch.equal(row_of(model, 7), before[7])

    def test_rows_to_spare_are_used_first(self):
        model, _, before, numbers = added("t5", ["<subject>"], vocab_size=32)
        assert model.get_input_embeddings().weight.shape[0] == 32
        torch.testing.assert_close(row_of(model, numbers[0]), before[16])

    def test_the_tokenizer_takes_a_token_whole_and_the_space_before_it(self):
        _, tokenizer, _, numbers = added("gpt2", ["<subject>"])
        assert tokenizer("word1 <subject> word2")["input_ids"] == [5, numbers[0], 6]
        assert tokenizer.decode([5, numbers[0], 6], skip_special_tokens=True) == "word1 word2"

    def test_a_loaded_model_gets_as_many_rows(self):
        _, tokenizer, before, _ = added("gpt2", ["<a>", "<b>"])
        model = model_of("gpt2")
        match_vocabulary(model, tokenizer)
        torch.testing.assert_close(model.get_input_embeddings().weight[18:], before.mean(0).expand(2, -1))


class TestConfigs:
    @pytest.mark.parametrize("config", [PrefixPropagationConfig(), LoraConfig(r=2)])
    def test_rows_of_the_input_alone_where_the_output_is_tied(self, config):
        assert with_trained_rows(config, model_of("gpt2"), [18, 19]).trainable_token_indices == [18, 19]
        assert config.trainable_token_indices is None

    def test_rows_of_both_where_it_is_not(self):
        rows = with_trained_rows(PrefixPropagationConfig(), model_of("llama"), [18]).trainable_token_indices
        assert rows == {"model.embed_tokens": [18], "lm_head": [18]}

    def test_the_users_tokens_are_kept(self):
        config = PrefixPropagationConfig(trainable_token_indices=[3])
        assert with_trained_rows(config, model_of("gpt2"), [18]).trainable_token_indices == [3, 18]

    def test_named_modules_of_the_user_are_refused(self):
        config = PrefixPropagationConfig(trainable_token_indices={"wte": [3]})
        with pytest.raises(ConfigError, match="name no modules"):
            with_trained_rows(config, model_of("gpt2"), [18])

    def test_full_tuning_trains_the_whole_table(self):
        model, *_ = added("gpt2", ["<new>"])
        assert attach(model, {"name": "full"}, "CAUSAL_LM", new_tokens=[18]) is model
        assert model.get_input_embeddings().weight.requires_grad


class TestSaving:
    @pytest.mark.parametrize(
        "config", [PromptTuningConfig(num_virtual_tokens=2), LoraConfig(r=2, target_modules=["q_proj"])]
    )
    def test_the_table_is_left_out_though_it_has_grown(self, config, tmp_path):
        save_model(tmp_path / "base", "bart")
        base, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base"), tokenizer_of("bart")
        numbers = add_new_tokens(base, tokenizer, ["<new>"])
        config.task_type = "SEQ_2_SEQ_LM"
        model = get_peft_model(base, with_trained_rows(config, base, numbers))
        with rows_alone(model):
            model.save_pretrained(tmp_path / "adapter")
        saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
        assert [x.shape for name, x in saved.items() if "token_adapter" in name] == [(1, 32)]
        assert all(x.shape[0] < 18 or "lora_" in name for name, x in saved.items())
        assert "save_pretrained" not in vars(model)

    def test_a_model_without_such_rows_is_saved_as_ever(self):
        model = get_peft_model(model_of("bart"), PromptTuningConfig(task_type="SEQ_2_SEQ_LM"))
        with rows_alone(model):
            assert "save_pretrained" not in vars(model)
