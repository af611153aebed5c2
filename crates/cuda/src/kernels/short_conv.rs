//! `short_conv`.

use mambo_kernel::{BackendError, Op, OpKind, Site};

use super::binding::Binding;
use super::declaration::Declaration;
use super::slot::SlotView;
use super::ssm_conv::{ConvParams, Convolution, is_narrow};
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::CStruct;
use crate::source::Source;

static SOURCE: Source = Source {
    stem: "short_conv",
    text: include_str!("../../kernels/short_conv.cu"),
    structs: &[SlotView::c_text, ConvParams::c_text],
};

static KERNELS: Convolution = Convolution { source: &SOURCE, entries: ["short_conv", "short_conv_store"] };

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let accepts = |site: &Site| matches!(site.op, Op::ShortConv(dims) if is_narrow(dims));
    let declaration = Declaration::new(OpKind::ShortConv, "f32", KERNELS.kernels(), bind);
    vec![declaration.offering(|row| row.accepting(accepts))]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::ShortConv(dims) = binding.call.op else { binding.wrong_op() };
    KERNELS.bind(binding, &dims)
}
