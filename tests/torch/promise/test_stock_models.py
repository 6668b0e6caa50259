"""Stock models of Hugging Face, tiny and with their default dropout: no step is skipped in silence."""

import warnings
from statistics import mean

import pytest
import torch

from pesky.torch import VSGD

STEPS = 100
WORDS = 64


def bert(transformers):
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=16,
    )
    net = transformers.BertForSequenceClassification(config)

    def batch():
        labels = torch.randint(0, 2, (16,))
        words = torch.randint(0, WORDS // 2, (16, 12)) + WORDS // 2 * labels[:, None]
        return {"input_ids": words, "labels": labels}

    return net, batch


def gpt2(transformers):
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLMLoss",
    )
    net = transformers.GPT2LMHeadModel(config)

    def batch():
        first = torch.randint(0, WORDS, (16, 1))
        words = (first + torch.arange(12)) % WORDS  # each word tells the next
        return {"input_ids": words, "labels": words}

    return net, batch


def vit(transformers):
    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=16,
        patch_size=8,
        num_channels=1,
        num_labels=2,
    )
    net = transformers.ViTForImageClassification(config)

    def batch():
        labels = torch.randint(0, 2, (16,))
        images = torch.randn(16, 1, 16, 16)
        images[:, :, :8] += labels[:, None, None, None].float()
        return {"pixel_values": images, "labels": labels}

    return net, batch


def t5(transformers):
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    net = transformers.T5ForConditionalGeneration(config)

    def batch():
        words = torch.randint(2, WORDS, (16, 8))
        return {"input_ids": words, "labels": words.clone()}

    return net, batch


CASES = [
    *((make, "minimize", attention) for make in (bert, gpt2, vit, t5) for attention in (None, "eager")),
    *((make, "watch", None) for make in (bert, gpt2)),
]


@pytest.mark.parametrize(("make", "way", "attention"), CASES)
def test_a_stock_model_skips_no_step_and_where_it_does_not_learn_a_warning_says_so(make, way, attention):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    net, batch = make(transformers)
    if attention is not None:  # or else what torch has at once, which is another graph
        net.set_attn_implementation(attention)
    net.train()
    optimizer = VSGD(net.parameters())
    losses = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way == "watch":
            optimizer.watch(net)
        for _ in range(STEPS):
            inputs = batch()
            if way == "minimize":
                loss = optimizer.minimize(lambda inputs=inputs: net(**inputs).loss)
            else:
                optimizer.zero_grad()
                loss = net(**inputs).loss
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
            assert all(bool(torch.isfinite(one).all()) for one in net.parameters())
    told = optimizer.explain()
    assert (told.steps, told.skipped) == (STEPS, {})
    said = [str(one.message) for one in caught if "loss" in str(one.message)]
    learns = mean(losses[-20:]) < 0.95 * mean(losses[:20])
    assert learns or said, losses
