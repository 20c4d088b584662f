from django.contrib import admin

from .models import Mail, Order, Product


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("name", "sku", "price", "stock", "visits")


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("reference", "product", "quantity", "placed_at", "paid_at", "picked_at")
    list_select_related = ("product",)
    readonly_fields = ("reference", "placed_at", "paid_at", "picked_at")


@admin.register(Mail)
class MailAdmin(admin.ModelAdmin):
    list_display = ("subject", "to", "written_at")
