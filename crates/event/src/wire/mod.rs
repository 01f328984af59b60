//! How a Rust type stands on the wire: what documents say of it, how it is read, how it is written.
//!
//! A wire type is a type of the vocabulary (`EventId`, `Group`, `Selector`…) or one of [`kinds`], for what a Rust type
//! alone cannot say: `Number<1, 100>`, `Text<1024>`, `List<EventId, 1, 10_000>`. The structs of frames are declared with
//! [`asked!`] (a client says it) and [`said!`] (the hub says it). From the one declaration follow the struct, what
//! documents say of each field (its name, what it may hold, whether it is needed, its words) and the code that reads or
//! writes it, without a tree and without an allocation of its own.
//!
//! Invariant: there is no second list. What `frame::shape` tells is what these types read and write.

mod kinds;
mod read;
mod write;

pub(crate) use kinds::{Any, Clamped, Cut, Filled, List, Name, Number, OrDefault, OwnHeaders, Pairs, Text, Whole};
pub(crate) use read::{Members, Read, Value};
pub(crate) use write::{Each, Marked, Open, Place, Said, Write, object};

use crate::frame::shape::{Field, Kind, Part};

/// What documents say of a type.
pub(crate) trait Described {
    /// What it may hold.
    const KIND: Kind;
    /// True if a field of it has to be there.
    const NEEDED: bool = true;
}

impl<T: Described> Described for Option<T> {
    const KIND: Kind = T::KIND;
    const NEEDED: bool = false;
}

/// What documents say of a struct, field by field.
pub(crate) trait Fields {
    /// The fields that are declared in it.
    const OWN: &'static [Field];
    /// Those of the structs in it, and its own.
    const FIELDS: &'static [&'static [Field]] = &[Self::OWN];
    /// Fields of which exactly one is there.
    const ONE_OF: &'static [&'static [Field]] = &[];
}

/// A struct that is an object of its own inside frames.
pub(crate) trait Object: Fields {
    /// What documents say of it.
    const PART: &'static Part;
}

/// The words of a doc comment, whose lines begin with a space each.
pub(crate) const fn about(doc: &'static str) -> &'static str {
    doc.trim_ascii_start()
}

/// The wire type of a field: the one that is named, else the field's own.
macro_rules! wire_type {
    ($type:ty) => {
        $type
    };
    ($type:ty, $wire:ty) => {
        $wire
    };
}

/// Declares what a client says: `struct Name<'a> from Split { … }` is read from the fields of `Split` with the same
/// identifiers; `Split` knows the names on the wire. `all of { … }` are structs whose fields stand beside its own. With
/// `named "Part"` it is an object inside frames. Its lifetime, if there is one, is `'a`.
macro_rules! asked {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(<$life:lifetime>)? from $split:ident
        $(named $part:literal $(needs $needs:ident)?)? {
            $(all of { $($(#[doc = $all_doc:literal])* $all_vis:vis $all:ident: $all_type:ty $(as $all_wire:ty)?,)+ })?
            $($(#[doc = $doc:literal])+ $field_vis:vis $field:ident: $type:ty $(as $wire:ty)?,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name $(<$life>)? {
            $($($(#[doc = $all_doc])* $all_vis $all: $all_type,)+)?
            $($(#[doc = $doc])+ $field_vis $field: $type,)*
        }

        #[allow(clippy::needless_lifetimes, clippy::extra_unused_lifetimes, unused_imports, unused_variables)]
        const _: () = {
            use crate::frame::shape::Field;
            use crate::wire::{Described, Fields, Members, Read};

            impl<'a> Fields for $name $(<$life>)? {
                const OWN: &'static [Field] = &[$(Field {
                    name: $split::NAMES.$field,
                    alias: $split::ALIASES.$field,
                    kind: <crate::wire::wire_type!($type $(, $wire)?) as Described>::KIND,
                    needed: <crate::wire::wire_type!($type $(, $wire)?) as Described>::NEEDED,
                    about: crate::wire::about(concat!($($doc),+)),
                },)*];
                const FIELDS: &'static [&'static [Field]] =
                    &[$($(<crate::wire::wire_type!($all_type $(, $all_wire)?) as Fields>::OWN,)+)? Self::OWN];
                const ONE_OF: &'static [&'static [Field]] =
                    &[$($(one_of::<crate::wire::wire_type!($all_type $(, $all_wire)?)>(),)+)?];
            }

            #[allow(dead_code)]
            const fn one_of<T: Fields>() -> &'static [Field] {
                match T::ONE_OF { [first, ..] => first, [] => &[] }
            }

            impl<'a> Members<'a> for $name $(<$life>)? {
                type Split = $split<'a>;
                #[inline(always)]
                fn read(split: &mut Self::Split) -> Result<Self, crate::Invalid> {
                    Ok(Self {
                        $($($all: <crate::wire::wire_type!($all_type $(, $all_wire)?) as Members<'a>>::read(split)?.into(),)+)?
                        $($field: <crate::wire::wire_type!($type $(, $wire)?) as Read<'a, $type, _>>::take(
                            &mut split.$field,
                            $split::NAMES.$field,
                        )?,)*
                    })
                }
            }

            crate::wire::asked_part! { $name $(<$life>)? $(, $part $(, $needs)?)? }
        };
    };
}

/// Declares what the hub says: `struct Name<'a> { field: Type as Wire = "name", … }` is written with these names, in this
/// order. `named "Part"` is an object inside frames, `is "OP"` a frame. `<'a; I: Item>` has lists that are iterators.
macro_rules! said {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident<$($life:lifetime)? $(; $($param:ident: $item:ty),+)?>
        $(named $part:literal)? $(is $op:literal)? {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($($serde:tt)*)])?
                $field_vis:vis $field:ident: $type:ty $(as $wire:ty)? = $wire_name:literal,
            )*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name<$($life,)? $($($param),+)?> {
            $($(#[doc = $doc])+ $(#[serde($($serde)*)])? $field_vis $field: $type,)*
        }

        #[allow(clippy::extra_unused_lifetimes)]
        const _: () = {
            use crate::frame::shape::Field;
            use crate::wire::{Described, Fields, Said, Write};

            impl<$($life,)? $($($param: Iterator<Item = $item> + Clone),+)?> Fields
                for $name<$($life,)? $($($param),+)?>
            {
                const OWN: &'static [Field] = &[$(Field {
                    name: $wire_name,
                    alias: "",
                    kind: <crate::wire::wire_type!($type $(, $wire)?) as Described>::KIND,
                    needed: <crate::wire::wire_type!($type $(, $wire)?) as Described>::NEEDED,
                    about: crate::wire::about(concat!($($doc),+)),
                },)*];
            }

            impl<$($life,)? $($($param: Iterator<Item = $item> + Clone),+)?> Said
                for $name<$($life,)? $($($param),+)?>
            {
                const OP: &'static str = concat!($($op)?);
                const BEGIN: &'static str = concat!("{\"op\":\"", $($op,)? "\"");
                #[inline(always)]
                fn members(&self, out: &mut Vec<u8>) {
                    $(<crate::wire::wire_type!($type $(, $wire)?) as Write<$type>>::member(
                        &self.$field,
                        concat!(",\"", $wire_name, "\":"),
                        out,
                    );)*
                }
                #[inline(always)]
                fn open(&self, out: &mut Vec<u8>) {
                    // Known when it is compiled, where the first member is always there.
                    let (start, first) = (out.len(), true);
                    $(
                        let name =
                            if first { concat!("{\"", $wire_name, "\":") } else { concat!(",\"", $wire_name, "\":") };
                        <crate::wire::wire_type!($type $(, $wire)?) as Write<$type>>::member(&self.$field, name, out);
                        let first = first
                            && !<crate::wire::wire_type!($type $(, $wire)?) as Described>::NEEDED
                            && out.len() == start;
                    )*
                    if first {
                        out.push(b'{');
                    }
                }
            }

            crate::wire::said_part! {
                [$($life,)? $($($param: Iterator<Item = $item> + Clone),+)?] $name<$($life,)? $($($param),+)?> $(, $part)?
            }
        };
    };
}

/// The part of [`asked!`] that is about an object inside frames.
macro_rules! asked_part {
    ($type:ty) => {};
    ($type:ty, $part:literal) => {
        const NEEDS: &[(&str, &str)] = &[];
        crate::wire::asked_part! { $type, $part, NEEDS }
    };
    ($type:ty, $part:literal, $needs:ident) => {
        impl<'a> crate::wire::Object for $type {
            const PART: &'static crate::frame::shape::Part = &crate::frame::shape::Part {
                name: $part,
                fields: <Self as Fields>::FIELDS,
                needs: $needs,
                asked: true,
            };
        }
    };
}

/// The part of [`said!`] that is about an object inside frames.
macro_rules! said_part {
    ([$($generic:tt)*] $type:ty) => {};
    ([$($generic:tt)*] $type:ty, $part:literal) => {
        impl<$($generic)*> crate::wire::Object for $type {
            const PART: &'static crate::frame::shape::Part = &crate::frame::shape::Part {
                name: $part,
                fields: <Self as Fields>::FIELDS,
                needs: &[],
                asked: false,
            };
        }

        impl<$($generic)*> Described for $type {
            const KIND: crate::frame::shape::Kind =
                crate::frame::shape::Kind::Object(<Self as crate::wire::Object>::PART);
        }

        impl<$($generic)*> Write<Self> for $type {
            #[inline]
            fn write(value: &Self, out: &mut Vec<u8>) {
                crate::wire::object(value, out);
            }
        }
    };
}

/// Declares the words of a field: the enum, its words, and how they are read.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }
    ) => {
        $(#[$meta])*
        $vis enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// The words on the wire.
            $vis const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word on the wire.
            $vis const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }

            fn of(text: &str, field: &str) -> Result<Self, crate::Invalid> {
                match text {
                    $($word => Ok($name::$variant),)+
                    _ => Err(crate::Invalid::request(field, format!("must be one of {}", Self::WORDS.join(", ")))),
                }
            }
        }

        impl crate::wire::Described for $name {
            const KIND: crate::frame::shape::Kind = crate::frame::shape::Kind::Word(Self::WORDS);
        }

        impl<'a> crate::wire::Value<'a, $name> for $name {
            fn read(raw: &'a serde_json::value::RawValue, name: &str) -> Result<Self, crate::Invalid> {
                Self::of(&crate::frame::field::text(raw, name)?, name)
            }
        }
    };
}

pub(crate) use {asked, asked_part, said, said_part, wire_type, words};
