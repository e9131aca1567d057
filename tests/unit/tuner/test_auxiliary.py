"""The auxiliary loss: which adapters bring it, where it appears, and that a training step has it exactly once."""

import logging
import os
import socket

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, inject_adapter_in_model
from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

from foretoken import (
    AuxiliaryLossCallback,
    PrefixPropagationConfig,
    PrefixTuningConfig,
    SelectivePrefixTuningConfig,
    StackConfig,
)
from foretoken.errors import AdapterError
from foretoken.tuner.auxiliary import auxiliary_loss_of, count_items

from support import tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*_prepare_4d.*:FutureWarning"),
]


def spt(weight=0.5, **options):
    """A selective prefix of three tokens whose loss is large enough to see."""
    defaults = {"num_virtual_tokens": 3, "prefix_dropout": 0.0, "selective_loss_weight": weight}
    return SelectivePrefixTuningConfig(**(defaults | options))


def adapted(config=None, family="bert", task="SEQ_CLS"):
    config = config or spt()
    config.task_type = config.task_type or tiny.peft_task(task)
    return tiny.shaken(get_peft_model(tiny.model(family, task).double(), config).double())


def task_loss(model, inputs):
    with torch.no_grad():
        return model(**inputs).loss


class TestTheLossOfTheModel:
    @pytest.mark.parametrize("options", [{}, {"prefix_projection": True}])
    @pytest.mark.parametrize("task", ["SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "MULTIPLE_CHOICE", "MASKED_LM"])
    def test_it_is_added_in_training(self, task, options):
        model, inputs = adapted(spt(**options), task=task).train(), tiny.batch("bert", task)
        auxiliary = model.auxiliary_loss()
        assert auxiliary > 0.1
        torch.testing.assert_close(model(**inputs).loss, task_loss(model, inputs) + auxiliary)

    def test_evaluation_shows_the_loss_of_the_task(self):
        model, inputs = adapted(), tiny.batch("bert")
        expected = task_loss(adapted(spt(0.0)), inputs)
        model.eval()
        assert torch.equal(model(**inputs).loss, expected)
        model.train()
        assert torch.equal(task_loss(model, inputs), expected)

    def test_tuples_have_it_in_front(self):
        model, inputs = adapted().train(), tiny.batch("bert")
        whole = model(**inputs, return_dict=False)
        named = model(**inputs)
        assert torch.equal(whole[0], named.loss)
        assert torch.equal(whole[1], named.logits)
        alone = model(**tiny.batch("bert", labels=False), return_dict=False)
        assert torch.equal(alone[0], named.logits)

    def test_a_missing_loss_is_said_once(self, caplog):
        model, inputs = adapted().train(), tiny.batch("bert", labels=False)
        with caplog.at_level(logging.WARNING, logger="foretoken"):
            for _ in range(3):
                assert model(**inputs).loss is None
        (said,) = caplog.records
        assert "add model.auxiliary_loss() to it" in said.message

    def test_a_count_without_labels_is_refused(self):
        model = adapted(task="QUESTION_ANS").train()
        with pytest.raises(AdapterError, match="num_items_in_batch came without `labels`"):
            model(**tiny.batch("bert", "QUESTION_ANS"), num_items_in_batch=torch.tensor(3))


class TestTheAdaptersAtWork:
    def test_methods_without_one_add_nothing(self):
        for config in (PrefixTuningConfig(num_virtual_tokens=3, prefix_dropout=0.0), spt(0.0)):
            model, inputs = adapted(config).train(), tiny.batch("bert")
            assert model.auxiliary_loss() is None
            assert torch.equal(model(**inputs).loss, task_loss(model, inputs))

    def test_it_follows_the_active_adapters(self):
        model, inputs = adapted(), tiny.batch("bert")
        first = model.auxiliary_loss()
        model.add_adapter("other", spt(2.0, num_virtual_tokens=5))
        model.double()
        assert torch.equal(model.auxiliary_loss(), first)
        model.set_adapter("other")
        assert model.auxiliary_loss() > first
        with model.disable_adapter():
            assert model.auxiliary_loss() is None
            assert torch.equal(model.train()(**inputs).loss, task_loss(model, inputs))
        model.set_adapter("default")
        model.delete_adapter("other")
        assert torch.equal(model.auxiliary_loss(), first)
        model.delete_adapter("default")
        assert model.auxiliary_loss() is None

    def test_documents_that_name_their_adapters(self):
        model, inputs = adapted().eval(), tiny.batch("bert")
        model.add_adapter("other", spt(2.0))
        model = tiny.shaken(model.double())
        for name, p in model.named_parameters():
            p.requires_grad_(".foretoken." in name)
        with model.disable_adapter():
            assert model.auxiliary_loss() is None
        losses = {}
        for name in ("default", "other"):
            model.base_model.set_adapter(name)
            losses[name] = model.auxiliary_loss()
            for key, p in model.named_parameters():
                p.requires_grad_(".foretoken." in key)
        names = ["other", "__base__", "default"]
        expected = task_loss(model, inputs | {"adapter_names": names}) + sum(losses.values())
        model.train()
        torch.testing.assert_close(model(**inputs, adapter_names=names).loss, expected)

    @pytest.mark.parametrize("lean", [False, True])
    def test_a_loaded_adapter_has_it(self, tmp_path, lean):
        model = adapted()
        model.save_pretrained(tmp_path)
        again = PeftModel.from_pretrained(
            tiny.model("bert").double(), tmp_path, is_trainable=True, low_cpu_mem_usage=lean
        )
        torch.testing.assert_close(again.auxiliary_loss(), model.auxiliary_loss())
        again.train()(**tiny.batch("bert")).loss.backward()
        assert again.get_parameter(prefix_names(again)[0]).grad.abs().max() > 0

    def test_a_frozen_adapter_adds_nothing(self, tmp_path):
        adapted().save_pretrained(tmp_path)
        model = PeftModel.from_pretrained(tiny.model("bert").double(), tmp_path).train()
        inputs = tiny.batch("bert")
        assert torch.equal(model(**inputs).loss, task_loss(model, inputs))

    def test_members_of_a_stack_bring_theirs(self):
        members = [PrefixPropagationConfig(num_virtual_tokens=2, prefix_dropout=0.0), spt(), spt(2.0), LoraConfig(r=2)]
        model = adapted(StackConfig(configs=members)).train()
        alone = [adapted(config) for config in (spt(), spt(2.0))]
        names = [prefix_names(model, f".attention.self.foretoken.default.parts.{part}.") for part in (0, 1)]
        for mine, other in zip(names, alone, strict=True):
            for name, own in zip(mine, prefix_names(other), strict=True):
                other.get_parameter(own).data.copy_(model.get_parameter(name).data)
        expected = sum(other.auxiliary_loss() for other in alone)
        torch.testing.assert_close(model.auxiliary_loss(), expected)
        inputs = tiny.batch("bert")
        torch.testing.assert_close(model(**inputs).loss, task_loss(model, inputs) + expected)

    def test_models_that_peft_does_not_wrap(self):
        model = inject_adapter_in_model(spt(), tiny.model("bert")).train()
        inputs = tiny.batch("bert")
        auxiliary = auxiliary_loss_of(model)
        torch.testing.assert_close(model(**inputs).loss, task_loss(model, inputs) + auxiliary)
        assert auxiliary_loss_of(tiny.model("bert")) is None


def prefix_names(model, part=".foretoken."):
    return [name for name, _ in model.named_parameters() if part in name and name.endswith("prefix.weight")]


class Gradients(TrainerCallback):
    """Keep the gradients of the first optimiser step."""

    def on_pre_optimizer_step(self, args, state, control, *, model, **_):
        self.found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def rows(family, task, count):
    """Documents whose numbers of targets differ."""
    inputs = tiny.batch(family, task, size=count, length=12)
    if task in ("TOKEN_CLS", "CAUSAL_LM", "SEQ_2_SEQ_LM"):
        for row, labels in enumerate(inputs["labels"]):
            labels[row + 1 :] = -100
    return [{name: values[row] for name, values in inputs.items()} for row in range(count)]


def gradients(folder, config, family, task, data, *, callbacks=(), **arguments):
    """Return the gradients of one optimiser step of a Trainer, and the Trainer."""
    found = Gradients()
    model = adapted(config, family, task)
    options = {"max_steps": 1, "learning_rate": 0.0, "max_grad_norm": 0.0, "logging_steps": 1, "seed": 3}
    arguments = TrainingArguments(
        str(folder), use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", **(options | arguments)
    )
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[found, *callbacks])
    trainer.train()
    return {name.replace("module.", ""): gradient for name, gradient in found.found.items()}, trainer


def assert_once(folder, family, task, data, *, weight=0.5, **arguments):
    """With and without its loss a step's gradients differ by the loss's gradient, once."""
    whole, trainer = gradients(folder, spt(weight), family, task, data, **arguments)
    plain, _ = gradients(folder, spt(0.0), family, task, data, **arguments)
    model = adapted(spt(weight), family, task)
    model.auxiliary_loss().backward()
    names = prefix_names(model)
    assert len(names) >= 2
    for name in names:
        torch.testing.assert_close(whole[name] - plain[name], model.get_parameter(name).grad, atol=1e-9, rtol=1e-7)
    return trainer


CASES = [
    ("bert", "SEQ_CLS"),  # is given num_items_in_batch and ignores it
    ("bert", "TOKEN_CLS"),
    ("bert", "QUESTION_ANS"),  # has no `labels`, so the Trainer counts nothing and divides by the micro-batches
    ("longformer", "SEQ_CLS"),
    ("llama", "TOKEN_CLS"),  # divides by num_items_in_batch
    ("llama", "CAUSAL_LM"),  # shifts labels
    ("bart", "SEQ_2_SEQ_LM"),
]


@pytest.mark.covering
@pytest.mark.parametrize(("family", "task"), CASES)
@pytest.mark.parametrize(("count", "size", "accumulation"), [(8, 8, 1), (7, 2, 4)])
def test_a_training_step_has_it_once(tmp_path, family, task, count, size, accumulation):
    """One batch, and four micro-batches of which the last is smaller."""
    assert_once(
        tmp_path,
        family,
        task,
        rows(family, task, count),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
    )


@pytest.mark.parametrize("family", ["bert", "modernbert", "llama", "gpt2", "t5", "bart"])
def test_targets_are_counted_as_the_trainer_counts_them(tmp_path, family):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    for task in ("SEQ_CLS", "TOKEN_CLS", "MASKED_LM", "CAUSAL_LM", "SEQ_2_SEQ_LM"):
        if task not in tiny.tasks(family):
            continue
        model = tiny.model(family, task)
        inputs = default_data_collator(rows(family, task, 4))
        trainer = Trainer(model, arguments)
        trainer.model_accepts_loss_kwargs = True
        wanted = trainer._get_num_items_in_batch([inputs], torch.device("cpu"))
        assert count_items(model, inputs) == wanted
        moved = inputs | {"shift_labels": inputs["labels"].flatten()[1:]}
        assert count_items(model, moved) == trainer._get_num_items_in_batch([moved], torch.device("cpu"))


def test_the_log_reports_it_beside_the_loss(tmp_path):
    data = rows("llama", "TOKEN_CLS", 8)
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 4}
    arguments |= {"logging_steps": 2, "learning_rate": 0.1}

    class Values(TrainerCallback):
        found = []  # noqa: RUF012 - of one test

        def on_step_begin(self, args, state, control, *, model, **_):
            self.found.append(model.auxiliary_loss().item())

    callbacks = [AuxiliaryLossCallback(), Values()]
    _, trainer = gradients(tmp_path, spt(), "llama", "TOKEN_CLS", data, callbacks=callbacks, **arguments)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    means = [sum(Values.found[i : i + 2]) / 2 for i in (0, 2)]
    assert [line["auxiliary_loss"] for line in lines] == pytest.approx(means)
    assert means[0] != means[1]
    assert "auxiliary_loss" not in trainer.state.log_history[-1]  # the summary of the run


def test_label_smoothing_is_told_of(tmp_path, caplog):
    """The Trainer then takes the labels away from the model and computes the loss itself."""
    with caplog.at_level(logging.WARNING, logger="foretoken"):
        gradients(tmp_path, spt(), "bert", "SEQ_CLS", rows("bert", "SEQ_CLS", 4), label_smoothing_factor=0.1)
    assert [record.name for record in caplog.records] == ["foretoken.tuner.auxiliary"]


def join(rank, port):
    """Make this one of two processes."""
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
    }


def in_two_processes(function, *arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(function, args=(port, *arguments), nprocs=2)


def train_in_step(rank, port, folder, average):
    """One process of a distributed training."""
    join(rank, port)
    for family, task in (("llama", "TOKEN_CLS"), ("bert", "QUESTION_ANS")):
        trainer = assert_once(
            f"{folder}/{family}",
            family,
            task,
            rows(family, task, 8),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            ddp_backend="gloo",
            average_tokens_across_devices=average,
        )
        assert trainer.args.world_size == 2
    torch.distributed.destroy_process_group()


def train_sharded(rank, port):
    """One process of a training whose parameters are sharded, with three documents here and one there."""
    from torch.distributed.fsdp import fully_shard

    join(rank, port)
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    inputs = {name: x[: 1 if rank else 3] for name, x in tiny.batch("bert").items()}

    def sharded_gradients(config):
        model = adapted(config).train()
        for layer in model.base_model.model.bert.encoder.layer:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        loss = 2 * model(**inputs, num_items_in_batch=torch.tensor(4)).loss  # as the Trainer does for two processes
        loss.backward()
        return {name: model.get_parameter(name).grad.full_tensor() for name in prefix_names(model)}

    whole, plain = sharded_gradients(spt(num_virtual_tokens=4)), sharded_gradients(spt(0.0, num_virtual_tokens=4))
    model = adapted(spt(num_virtual_tokens=4))
    model.auxiliary_loss().backward()
    for name, gradient in whole.items():
        torch.testing.assert_close(gradient - plain[name], model.get_parameter(name).grad, atol=1e-9, rtol=1e-7)
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("average", [True, False])
def test_two_processes_have_it_once(tmp_path, average):
    in_two_processes(train_in_step, str(tmp_path), average)


@pytest.mark.slow
def test_sharded_parameters_have_it_once():
    in_two_processes(train_sharded)
