"""requantise.py SOURCE.gguf TARGET.gguf: a copy with every Q4_1 tensor as Q4_0, the type llama.cpp runs fastest."""
import sys

from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants

source, target = sys.argv[1:]
reader = GGUFReader(source)
writer = GGUFWriter(target, reader.get_field("general.architecture").contents())
for field in reader.fields.values():
    if field.name.startswith("GGUF.") or field.name == "general.architecture":
        continue  # the writer adds these itself
    kind = field.types[0]
    element = field.types[-1] if kind == GGUFValueType.ARRAY else None
    writer.add_key_value(field.name, field.contents(), kind, sub_type=element)
for tensor in reader.tensors:
    data, kind = tensor.data, tensor.tensor_type
    if kind == Type.Q4_1:
        data, kind = quants.quantize(quants.dequantize(data, kind), Type.Q4_0), Type.Q4_0
    writer.add_tensor(tensor.name, data, raw_dtype=kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
