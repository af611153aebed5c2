//! What the host and the kernels both read, defined once: a struct is written in Rust, and its C text is made from it.

use std::marker::PhantomData;

use mambo_kernel::{Operand, Place, RowBase};

/// A type that kernels know, too.
pub(crate) trait CType: Copy + 'static {
    /// Its name in C.
    fn c_name() -> String;
}

macro_rules! plain_types {
    ($($rust:ty => $c:literal),* $(,)?) => {
        $(impl CType for $rust {
            fn c_name() -> String {
                $c.to_owned()
            }
        })*
    };
}

plain_types! {
    u8 => "unsigned char",
    u16 => "unsigned short",
    u32 => "unsigned int",
    i32 => "int",
    u64 => "unsigned long long",
    f32 => "float",
    f64 => "double",
}

/// An address in the device's memory.
#[derive(Debug)]
pub(crate) struct Ptr<T> {
    address: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> PartialEq for Ptr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> Ptr<T> {
    pub const NULL: Ptr<T> = Ptr::at(0);

    pub const fn at(address: u64) -> Ptr<T> {
        Ptr { address, of: PhantomData }
    }

    pub const fn address(self) -> u64 {
        self.address
    }

    /// The address so many bytes on.
    pub fn plus_bytes(self, bytes: usize) -> Ptr<T> {
        Ptr::at(self.address + bytes as u64)
    }

    /// The same address of something else.
    pub fn cast<U>(self) -> Ptr<U> {
        Ptr::at(self.address)
    }
}

impl<T: CType> CType for Ptr<T> {
    fn c_name() -> String {
        format!("{}*", T::c_name())
    }
}

/// A struct that the host fills and kernels read.
pub(crate) trait CStruct: CType {
    /// Its definition in C.
    fn c_text() -> String;
}

/// The line of a field, for [`c_struct!`].
pub(crate) fn c_field<T, F: CType>(_: fn(&T) -> &F, name: &str) -> String {
    format!("    {} {name};\n", F::c_name())
}

/// Defines structs in Rust with the layout of C, and [`CStruct::c_text`] that defines them in C.
macro_rules! c_struct {
    ($($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[$field_doc:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq)]
            $vis struct $name {
                $($(#[$field_doc])* $field_vis $field: $type,)*
            }

            impl $crate::params::CType for $name {
                fn c_name() -> String {
                    stringify!($name).to_owned()
                }
            }

            impl $crate::params::CStruct for $name {
                fn c_text() -> String {
                    let name = stringify!($name);
                    let mut text = format!("struct {name} {{\n");
                    $(text.push_str(&$crate::params::c_field(|all: &$name| &all.$field, stringify!($field)));)*
                    let bytes = size_of::<$name>();
                    text.push_str(&format!("}};\nstatic_assert(sizeof({name}) == {bytes}, \"{name}\");\n"));
                    text
                }
            }
        )*
    };
}
pub(crate) use c_struct;

c_struct! {
    /// Rows of an operand: address, stride, and what its rows are counted in.
    pub(crate) struct View {
        /// The first row; null where the operand is the step's token ids or wanted rows.
        pub data: Ptr<u8>,
        /// Bytes from one row to the next.
        pub stride: u32,
        /// Elements per row.
        pub cols: u32,
        /// 0 counts tokens, 1 wanted rows.
        pub counts_wanted: u32,
        /// Rows for each of those.
        pub times: u32,
    }
}

impl View {
    /// The rows of an operand; `arena` and `hidden` are where those places start.
    pub fn of(operand: &Operand, arena: Ptr<u8>, hidden: Ptr<u8>) -> View {
        let narrow = |n: usize| u32::try_from(n).expect("a row is smaller than 4 GiB");
        View {
            data: match operand.place {
                Place::Arena(offset) => arena.plus_bytes(offset),
                Place::Hidden(offset) => hidden.plus_bytes(offset),
                Place::TokenIds | Place::Wanted => Ptr::NULL,
            },
            stride: narrow(operand.stride_bytes),
            cols: narrow(operand.cols),
            counts_wanted: u32::from(operand.rows.base == RowBase::Wanted),
            times: narrow(operand.rows.times),
        }
    }

    /// No rows: for optional operands.
    pub const NONE: View = View { data: Ptr::NULL, stride: 0, cols: 0, counts_wanted: 0, times: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    c_struct! {
        struct Mixed { first: u8, second: Ptr<View>, third: f32 }
    }

    #[test]
    fn text_names_every_field_with_its_type_and_checks_the_size() {
        let text = Mixed::c_text();
        assert_eq!(
            text,
            "struct Mixed {\n    unsigned char first;\n    View* second;\n    float third;\n};\n\
             static_assert(sizeof(Mixed) == 24, \"Mixed\");\n"
        );
    }
}
